# SPDX-License-Identifier: Apache-2.0
"""The commands of `sfumato`: what would it cost, train, publish, audit, and the ledger."""

from typing import Annotated, Any

import typer

import sfumato
from sfumato import _check
from sfumato.accounting import Accountant, Plan, Price, Relation, dp_sgd, plan, price
from sfumato.accounting.default_delta import delta_note
from sfumato.accounting.events import DpEvent, from_json
from sfumato.cli import audit, card, federate, fit, ledger, pate, reproduce, stats, synthesize, train
from sfumato.cli.options import Delta, Json, Relations
from sfumato.cli.show import show_facts, waiting
from sfumato.errors import InvalidParameterError

__all__ = ["app"]

app = typer.Typer(
    name="sfumato",
    help="Differential privacy under one ledger: what would it cost, what was spent, may I?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(ledger.app, name="ledger")
app.command("train")(train.command)
app.command("pate")(pate.command)
app.command("synthesize")(synthesize.command)
app.command("federate")(federate.command)
app.command("stats")(stats.command)
app.command("fit")(fit.command)
app.command("audit")(audit.command)
app.command("card")(card.command)
app.command("reproduce")(reproduce.command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"sfumato {sfumato.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def account(
    *,
    delta: Delta,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise stddev over clip norm.")] = None,
    sampling_rate: Annotated[float, typer.Option(help="Chance that a unit is in one batch.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Noisy updates in the run.")] = 1,
    event: Annotated[
        str | None, typer.Option(help="Any event as JSON, in place of the three flags above.")
    ] = None,
    relation: Relations = Relation.ADD_REMOVE.value,
    accountant: Annotated[
        Accountant | None, typer.Option(help="Which accountant; the tightest one if not said.")
    ] = None,
    privacy_unit: Annotated[str, typer.Option(help="Who is protected.")] = "example",
    as_json: Json = False,
) -> None:
    """Say what a run of Poisson-sampled Gaussian steps, or any event, costs."""
    _check.delta(delta=delta)
    described = _event(noise_multiplier, sampling_rate, steps, event)
    with waiting("Pricing"):
        cost = price(described, delta=delta, relation=Relation.parse(relation), accountant=accountant)
    facts = _facts(cost) | {"privacy_unit": privacy_unit} | _noted(delta, None)
    show_facts(str(cost.guarantee(privacy_unit)), facts, as_json=as_json)


def _event(noise: float | None, rate: float, steps: int, event: str | None) -> DpEvent:
    if (noise is None) == (event is None):
        raise InvalidParameterError("give either --noise-multiplier or --event, and not both.")
    if event is not None:
        return from_json(event)
    assert noise is not None  # for the type checker
    return dp_sgd(noise_multiplier=noise, sampling_rate=rate, steps=steps)


def _facts(cost: Price) -> dict[str, Any]:
    return {
        "epsilon": cost.epsilon,
        "lower": cost.lower,
        "upper": cost.upper,
        "delta": cost.delta,
        "relation": cost.relation.value,
        "accountant": cost.accountant.value,
        "theorem": cost.theorem,
    }


@app.command("plan")
def plan_command(
    *,
    epsilon: Annotated[float | None, typer.Option(help="The epsilon to meet.")] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="The delta of the guarantee; the largest power of ten below 1 / public_size."),
    ] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise stddev over clip norm.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="Chance that a unit is in one batch.")] = None,
    steps: Annotated[int | None, typer.Option(help="Noisy updates in the run.")] = None,
    public_size: Annotated[int | None, typer.Option(help="Number of units, if it is public.")] = None,
    expected_batch_size: Annotated[float | None, typer.Option(help="Sampling rate times size.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Steps times sampling rate.")] = None,
    relation: Relations = Relation.ADD_REMOVE.value,
    ledger_at: Annotated[
        str | None, typer.Option("--ledger", help="Fit the run into what an account of this ledger has left.")
    ] = None,
    name: Annotated[str | None, typer.Option("--account", help="The account in that ledger.")] = None,
    as_json: Json = False,
) -> None:
    """Find the one of epsilon, noise, sampling rate and steps that is not given. Nothing is spent."""
    terms: dict[str, Any] = {
        "noise_multiplier": noise_multiplier,
        "sampling_rate": sampling_rate,
        "steps": steps,
        "public_size": public_size,
        "expected_batch_size": expected_batch_size,
        "epochs": epochs,
    }
    with waiting("Planning"):
        if ledger_at is not None or name is not None:
            found = ledger.plan_within(ledger_at, name, epsilon, delta, terms)
        else:
            parsed = Relation.parse(relation)
            found = plan(epsilon=epsilon, delta=delta, relation=parsed, **terms)
    title = "Plan: nothing is spent yet" if ledger_at is None else f"Plan that account {name!r} would admit"
    facts = _plan_facts(found) | _noted(found.price.delta, public_size)
    show_facts(title, facts, as_json=as_json)


def _noted(delta: float, public_size: int | None) -> dict[str, Any]:
    note = delta_note(delta, public_size)
    return {} if note is None else {"notes": [note]}


def _plan_facts(found: Plan) -> dict[str, Any]:
    settings = {
        "noise_multiplier": found.noise_multiplier,
        "sampling_rate": found.sampling_rate,
        "steps": found.steps,
    }
    return settings | _facts(found.price)
