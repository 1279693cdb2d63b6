# SPDX-License-Identifier: Apache-2.0
"""The flags of `sfumato train`. What they do is in `training_run`, loaded when it is asked for."""

from typing import Annotated

import typer

from sfumato._torch import require_torch
from sfumato.cli.options import Json

__all__ = ["command"]

DATA = "digits, breast-cancer, mnist, fashion-mnist, cifar10, credit-default, adult or shakespeare."


def command(
    data: Annotated[str | None, typer.Argument(help=f"What to train on: {DATA}", show_default=False)] = None,
    *,
    private: Annotated[
        str | None, typer.Option(help="What is secret: rows (the default), or labels alone.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="With --private labels: clusters, altconv, dp-sgd ...; else chosen.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="linear, mlp or cnn; lstm or transformer for text.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The epsilon to meet.")] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="The delta of the guarantee; the largest power of ten below 1 / public_size."),
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise stddev over clip norm, in place of or beside --epsilon.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Steps times sampling rate.")] = None,
    expected_batch_size: Annotated[float | None, typer.Option(help="Sampling rate times size.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="L2 bound on one unit's gradient.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The optimizer's step.")] = None,
    audit: Annotated[
        int | None, typer.Option(help="Plant so many canaries, and show what they prove beside epsilon.")
    ] = None,
    ledger: Annotated[str | None, typer.Option(help="Charge the run to an account of this ledger.")] = None,
    account: Annotated[str | None, typer.Option(help="The account in that ledger.")] = None,
    folder: Annotated[str | None, typer.Option(help="Where checkpoints, metrics and weights go.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --folder.")] = False,
    report: Annotated[str | None, typer.Option(help="Write a page with the curves here.")] = None,
    device: Annotated[str | None, typer.Option(help="Where to compute: cpu, cuda, cuda:1 ...")] = None,
    seed: Annotated[
        int | None, typer.Option(help="For study only: noise from a seed protects nobody.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="A TOML file with these and more settings.")] = None,
    as_json: Json = False,
) -> None:
    """Train a network on a public data set to a budget. What is not said comes from a fixed recipe."""
    require_torch()
    from sfumato.cli import training_run
    from sfumato.cli.settings import TrainSettings

    said = TrainSettings(
        data=data,
        private=private,
        method=method,
        model=model,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        epochs=epochs,
        expected_batch_size=expected_batch_size,
        clip_norm=clip_norm,
        learning_rate=learning_rate,
        audit=audit,
        ledger=ledger,
        account=account,
        folder=folder,
        report=report,
        device=device,
        seed=seed,
    )
    training_run.run(said, config=config, resume=resume, as_json=as_json)
