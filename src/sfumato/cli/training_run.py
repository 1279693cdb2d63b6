# SPDX-License-Identifier: Apache-2.0
"""What `sfumato train` does: settings in, a trained model, its statement and its page out.

Order      Everything that can be wrong with settings and files is found before the run is paid for. The page
           is begun before the run too: a run whose result could not be shown would be spent for nothing.
"""

import json
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sfumato import _check
from sfumato.accounting import Relation, round_up
from sfumato.accounting.default_delta import default_delta, delta_note
from sfumato.audit.canaries import Canaries
from sfumato.cli import label_run
from sfumato.cli.settings import TrainSettings, keep, kept, read_config
from sfumato.cli.show import show_facts, show_text, waiting
from sfumato.datasets import Dataset, load
from sfumato.errors import InvalidParameterError
from sfumato.ledger import Account, Ledger
from sfumato.report import TrainingFacts, page, training_report, write_report
from sfumato.testing import seeded
from sfumato.training import Clipping, Runtime, TrainingRun, train
from sfumato.training.checkpoint import RunFolder
from sfumato.training.models import loss_for, model_for, score_for

__all__ = ["run"]


def run(said: TrainSettings, *, config: str | None, resume: bool, as_json: bool) -> None:
    """Train as the flags, the file and the recipe say, and show what came out."""
    asked = said if config is None else said.over(read_config(config))
    if _only_labels(asked):
        if resume:
            raise InvalidParameterError("--resume is not for --private labels: such a run begins anew.")
        label_run.run(asked, as_json=as_json)
        return
    settings = _settings(said, config=config, resume=resume)
    with waiting("Loading"):
        data = load(str(settings.data))
    account = _account(settings)
    settings = _with_delta(settings, data, account)
    model = _model(settings, data)
    _begin(settings, resume=resume)
    done = _train(settings, data, model, account, resume=resume)
    if settings.report is not None:
        write_report(settings.report, _page(settings, data, done, account))
    _show(settings, data, done, as_json=as_json, delta_chosen=said.delta is None and account is None)


# --- before the run --------------------------------------------------------------------------------------


def _only_labels(settings: TrainSettings) -> bool:
    if settings.private not in (None, "rows", "labels"):
        raise InvalidParameterError(
            f"--private is about what is secret: rows or labels, but {settings.private!r} was given."
        )
    if settings.method is not None and settings.private != "labels":
        raise InvalidParameterError("--method is one of label privacy: say --private labels, too.")
    return settings.private == "labels"


def _settings(said: TrainSettings, *, config: str | None, resume: bool) -> TrainSettings:
    settings = said if config is None else said.over(read_config(config))
    if resume:
        if settings.folder is None:
            raise InvalidParameterError("there is nothing to resume without --folder.")
        settings = settings.over(kept(settings.folder))
    return settings.completed()


def _account(settings: TrainSettings) -> Account | None:
    if (settings.ledger is None) != (settings.account is None):
        raise InvalidParameterError("give both --ledger and --account to charge the run, or neither.")
    if settings.ledger is None or settings.account is None:
        if settings.epsilon is None and settings.noise_multiplier is None:
            raise InvalidParameterError(
                "say how private the run must be: --epsilon, or --noise-multiplier, or --ledger and "
                "--account to spend what an account has left."
            )
        return None
    return Ledger(settings.ledger, create=False).account(settings.account)


def _with_delta(settings: TrainSettings, data: Dataset, account: Account | None) -> TrainSettings:
    if settings.delta is not None:
        return settings
    delta = default_delta(data.public_size) if account is None else account.budget.delta
    return TrainSettings(delta=delta).over(settings)


def _model(settings: TrainSettings, data: Dataset) -> nn.Module:
    """Build the model; from a seed its first weights are the same each time."""
    name, width = str(settings.model), settings.width or 1
    if settings.seed is None:
        return model_for(data, name, width=width)
    with torch.random.fork_rng([]):
        torch.manual_seed(settings.seed)
        return model_for(data, name, width=width)


def _begin(settings: TrainSettings, *, resume: bool) -> None:
    """Try the places that the run will write to."""
    if settings.report is not None:
        try:
            write_report(settings.report, page("A training run", "<p>This run is not finished.</p>"))
        except OSError as error:
            raise InvalidParameterError(
                f"the page {settings.report!r} cannot be written: {error.strerror}. Give another --report."
            ) from error
    if settings.folder is not None and not resume:
        folder = RunFolder(settings.folder)
        folder.make()
        folder.require_unused()
        keep(settings, settings.folder)


# --- the run ---------------------------------------------------------------------------------------------


def _train(
    settings: TrainSettings, data: Dataset, model: nn.Module, account: Account | None, *, resume: bool
) -> TrainingRun:
    owned = data.train.user_ids is not None
    purpose = settings.purpose or f"train {settings.model} on {settings.data}"
    return train(
        model,
        data,
        expected_batch_size=settings.expected_batch_size or 0.0,
        epochs=settings.epochs,
        steps=settings.steps,
        epsilon=settings.epsilon,
        delta=settings.delta,
        noise_multiplier=settings.noise_multiplier,
        clipping=Clipping(clip_norm=settings.clip_norm, per_layer=bool(settings.per_layer)),
        relation=None if settings.relation is None else Relation.parse(settings.relation),
        contribution_bound=settings.contribution_bound if owned else None,
        loss=loss_for(data),
        score=score_for(data),
        optimizer=_optimizer(settings),
        ema_decay=settings.ema_decay,
        audit=None if settings.audit is None else Canaries(count=settings.audit),
        evaluation=data.test,
        evaluate_every=settings.evaluate_every,
        privacy_unit=data.privacy_unit,
        account=account,
        purpose=purpose if account is not None else None,
        folder=settings.folder,
        resume=resume,
        generator=None if settings.seed is None else seeded(settings.seed),
        runtime=_runtime(settings),
    )


def _optimizer(settings: TrainSettings) -> Any:
    rate, momentum = settings.learning_rate or 0.0, settings.momentum or 0.0
    _check.positive(learning_rate=rate)
    _check.in_range(0, 1, momentum=momentum)

    def sgd(parameters: list[nn.Parameter]) -> Optimizer:
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum)

    def adam(parameters: list[nn.Parameter]) -> Optimizer:
        return torch.optim.Adam(parameters, lr=rate)

    makers = {"sgd": sgd, "adam": adam}
    if settings.optimizer not in makers:
        raise InvalidParameterError(
            f"unknown optimizer {settings.optimizer!r}. Use one of: {', '.join(makers)}."
        )
    return makers[settings.optimizer]


def _runtime(settings: TrainSettings) -> Runtime:
    try:
        device = None if settings.device is None else torch.device(settings.device)
    except RuntimeError:
        raise InvalidParameterError(f"unknown device {settings.device!r}. Use cpu or cuda.") from None
    if device is not None and device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidParameterError("there is no CUDA device here. Leave --device out to train on the CPU.")
    engine: dict[str, Any] = {} if settings.engine is None else {"engine": settings.engine}
    return Runtime(device=device, microbatch_size=settings.microbatch_size, **engine)


# --- after the run ---------------------------------------------------------------------------------------


def _facts(settings: TrainSettings, data: Dataset, done: TrainingRun) -> dict[str, Any]:
    last = done.history[-1]
    return {
        "data": data.name,
        "model": _described(settings, done.model),
        "accuracy": None if last.accuracy is None else f"{last.accuracy:.1%}",
        "epsilon": done.epsilon,
        "delta": done.price.delta,
        "relation": done.price.relation.value,
        "privacy_unit": done.privacy_unit,
        "steps": done.mechanism.steps,
        "recorded": done.recorded,
        "account": done.account,
        "seconds": round(done.seconds, 1),
        "folder": settings.folder,
        "report": settings.report,
    }


def _described(settings: TrainSettings, model: nn.Module) -> str:
    return f"{settings.model}, {sum(p.numel() for p in model.parameters()):,} parameters"


def _page(settings: TrainSettings, data: Dataset, done: TrainingRun, account: Account | None) -> str:
    # Rounded down: noise is not overstated.
    noise = {"noise multiplier": ", ".join(f"{-round_up(-n, 6):g}" for n, _ in done.mechanism.noise)}
    facts = TrainingFacts(
        data=data.name,
        model=_described(settings, done.model),
        guarantee=done.guarantee,
        statement=done.statement(),
        history=done.history,
        settings={name.replace("_", " "): value for name, value in settings.said().items()} | noise,
        study_note=done.study_note,
    )
    ledger_statement = None if account is None else account.statement().text
    return training_report(facts, title=f"{data.name}, learned privately", ledger_statement=ledger_statement)


def _show(
    settings: TrainSettings, data: Dataset, done: TrainingRun, *, as_json: bool, delta_chosen: bool
) -> None:
    large = delta_note(done.price.delta, data.public_size)
    if as_json:
        notes = [note for note in (done.record_note, done.study_note, large) if note is not None]
        told = {"data": data.name, "settings": settings.said(), "accuracy": done.accuracy, "notes": notes}
        show_facts("", told | json.loads(done.to_json()), as_json=True)
        return
    facts = {name: value for name, value in _facts(settings, data, done).items() if value is not None}
    show_facts(str(done.guarantee), facts, as_json=False)
    show_text(f"\n{done.statement()}")
    if large is not None:
        show_text(f"\nNote: {large}.")
    if delta_chosen:
        show_text(
            f"\nDelta was not given: {done.price.delta:g} is the largest power of ten below one over the "
            f"public size, {data.public_size}."
        )
