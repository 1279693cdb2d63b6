# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato federate`: from settings to a model that was learned from simulated clients.

Failure    Settings, the account, the folder and the page are checked before the charge. The folder keeps the
           settings, so that an interrupted run goes on with `--resume --folder FOLDER`: it is not charged
           again, and flags that contradict the settings are refused.
"""

import json
from typing import Any, Final

import torch
from torch import nn

from sfumato import _check
from sfumato.accounting.default_delta import delta_note
from sfumato.audit.runs.canaries import Canaries
from sfumato.cli.before_run import require_run, take_places
from sfumato.cli.devices import device_named
from sfumato.cli.federation_settings import FederationSettings
from sfumato.cli.places import account_at
from sfumato.cli.project.defaults import in_environment
from sfumato.cli.settings import kept, require_same
from sfumato.cli.show import show_facts, show_text, waiting
from sfumato.datasets import Dataset, load
from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.client_rows import AssignedRows, ClientRows
from sfumato.federated.clients.local_training import LocalTraining
from sfumato.federated.clients.partitions import by_user, dirichlet, iid
from sfumato.federated.federate import federate
from sfumato.federated.recipes import FederationRecipe, federation_recipe
from sfumato.federated.secure_sum.secure_sum import IntegerNoise
from sfumato.ledger import Account
from sfumato.testing import seeded
from sfumato.training import (
    AdaptiveClip,
    BandedNoise,
    Clipping,
    CyclicBatches,
    Evaluation,
    Runtime,
    TrainingRun,
)
from sfumato.training.models.networks import loss_for, model_for, score_for
from sfumato.training.random_state import same_draws

__all__ = ["run"]

_FREE: Final = ("folder", "device", "ledger", "report")  # may be others when a run is resumed
_ALPHA: Final = 0.3
_COUNT_NOISE: Final = 10.0  # of the noisy count that an adaptive clip norm follows
_ADAM_RATE: Final = 0.01


def run(said: FederationSettings, *, resume: bool, as_json: bool) -> None:
    """Train as the flags and the defaults of the data set say, and show the result."""
    settings = _resumed(said) if resume else in_environment(said)
    if settings.data is None:
        raise InvalidParameterError("pass what to learn from: `sfumato federate digits --epsilon 8`.")
    recipe = federation_recipe(settings.data)
    account = account_at(settings.ledger, settings.account, purpose=settings.purpose)
    if settings.epsilon is None and settings.noise_multiplier is None and account is None:
        raise InvalidParameterError(
            "pass how private the run must be: --epsilon, or --noise-multiplier, or --ledger and --account "
            "to spend what an account has left."
        )
    with waiting("Loading"):
        data = load(settings.data)
        clients = _clients(settings, recipe, data)
    model = _model(settings, recipe, data)
    take_places(settings, {"the ledger": settings.ledger}, resume=resume)
    done = _trained(settings, recipe, data, model, clients, account, resume=resume)
    if settings.report is not None:
        done.report(settings.report, title=f"{data.name}, learned from {len(clients)} clients")
    _show(settings, done, data, clients, as_json=as_json)


def _resumed(said: FederationSettings) -> FederationSettings:
    """Return the settings of the run in a folder, with flags that may change."""
    if said.folder is None:
        raise InvalidParameterError("there is nothing to resume without --folder.")
    before = kept(said.folder, FederationSettings)
    if before.given():  # else it was not started from here: the run itself refuses other settings
        require_same(said, before, folder=said.folder, free=_FREE)
    elif said.data is None:
        require_run(said.folder)
    return said.over(before)


def _clients(settings: FederationSettings, recipe: FederationRecipe, data: Dataset) -> ClientRows:
    kind = settings.partition or ("by-user" if recipe.clients is None else "iid")
    if kind == "by-user":
        if settings.clients is not None or settings.alpha is not None:
            raise InvalidParameterError(
                "the users of a data set are its clients: leave --clients and --alpha out."
            )
        return by_user(data)
    clients = _or(settings.clients, recipe.clients)
    if clients is None:
        raise InvalidParameterError(f"pass --clients for --partition {kind}.")
    if kind == "iid":
        if settings.alpha is not None:
            raise InvalidParameterError("--alpha is for --partition dirichlet: leave it out.")
        return iid(data, clients=clients)
    if kind == "dirichlet":
        return dirichlet(data, clients=clients, alpha=_or(settings.alpha, _ALPHA))
    raise InvalidParameterError(f"unknown partition {kind!r}. Use iid, dirichlet or by-user.")


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _trained(
    settings: FederationSettings,
    recipe: FederationRecipe,
    data: Dataset,
    model: nn.Module,
    clients: ClientRows,
    account: Account | None,
    *,
    resume: bool,
) -> TrainingRun:
    cohort = _or(settings.cohort, max(1.0, recipe.cohort_share * len(clients)))
    purpose = settings.purpose or f"federated training on {settings.data}"
    return federate(
        model,
        clients,
        rounds=_or(settings.rounds, recipe.rounds),
        expected_cohort_size=cohort,
        local=_local(settings, recipe, data),
        noise=_noise(settings),
        evaluation=Evaluation(
            data=data.test, score=score_for(data), evaluate_every=_or(settings.evaluate_every, 1)
        ),
        runtime=Runtime(device=device_named(settings.device)),
        audit=None if settings.audit is None else Canaries(count=settings.audit),
        generator=None if settings.seed is None else seeded(settings.seed),
        resume=resume,
        epsilon=settings.epsilon,
        delta=settings.delta,
        noise_multiplier=settings.noise_multiplier,
        clipping=_clipping(settings, recipe),
        optimizer=_server(settings),
        folder=settings.folder,
        account=account,
        purpose=purpose if account is not None else None,
        **_cycles(settings, cohort, len(clients)),
    )


def _model(settings: FederationSettings, recipe: FederationRecipe, data: Dataset) -> nn.Module:
    name = settings.model or recipe.model
    if settings.seed is None:
        return model_for(data, name)
    with same_draws(seed=settings.seed):
        return model_for(data, name)


def _local(settings: FederationSettings, recipe: FederationRecipe, data: Dataset) -> LocalTraining:
    local = recipe.local
    return LocalTraining(
        epochs=_or(settings.local_epochs, local.epochs),
        batch_size=_or(settings.local_batch_size, local.batch_size),
        learning_rate=_or(settings.local_learning_rate, local.learning_rate),
        proximal=_or(settings.proximal, local.proximal),
        full_weight_rows=_or(settings.full_weight_rows, local.full_weight_rows),
        loss=loss_for(data),
    )


def _noise(settings: FederationSettings) -> str | None:
    names = ("server", *(kind.value for kind in IntegerNoise))
    if settings.noise is not None and settings.noise not in names:
        raise InvalidParameterError(f"unknown noise {settings.noise!r}. Use one of: {', '.join(names)}.")
    return None if settings.noise == "server" else settings.noise


def _clipping(settings: FederationSettings, recipe: FederationRecipe) -> Clipping:
    quantile = settings.adaptive_quantile
    adaptive = (
        None if quantile is None else AdaptiveClip(quantile=quantile, count_noise_multiplier=_COUNT_NOISE)
    )
    return Clipping(clip_norm=_or(settings.clip_norm, recipe.clip_norm), adaptive=adaptive)


def _server(settings: FederationSettings) -> Any:
    name = settings.server or "average"
    rate = _or(settings.server_learning_rate, _ADAM_RATE if name == "adam" else 1.0)
    _check.positive(server_learning_rate=rate)
    momentum = 0.9 if name == "momentum" else 0.0

    def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum)

    def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=rate)

    makers = {"average": sgd, "momentum": sgd, "adam": adam}
    if name not in makers:
        raise InvalidParameterError(f"unknown server {name!r}. Use one of: {', '.join(makers)}.")
    return makers[name]


def _cycles(settings: FederationSettings, cohort: float, clients: int) -> dict[str, Any]:
    """Return what takes the place of Poisson cohorts, where noise is to be correlated."""
    if settings.bands is None:
        return {}
    return {
        "sampling": CyclicBatches(batch_size=max(1, round(cohort)), public_size=clients),
        "correlation": BandedNoise(bands=settings.bands),
        "relation": "zero-out",
    }


def _show(
    settings: FederationSettings, done: TrainingRun, data: Dataset, clients: ClientRows, *, as_json: bool
) -> None:
    more = [note for note in (delta_note(done.guarantee.delta, len(clients)), _empty_note(clients)) if note]
    if as_json:
        notes = [note for note in (done.record_note, done.study_note, *more) if note is not None]
        told = {"data": data.name, "clients": len(clients), "settings": settings.given()}
        show_facts(
            "", told | {"accuracy": done.accuracy, "notes": notes} | json.loads(done.to_json()), as_json=True
        )
        return
    server = done.against_server
    facts = {
        "data": data.name,
        "clients": len(clients),
        "rounds": done.mechanism.steps,
        "cohort, on average": done.expected_batch_size,
        "accuracy": None if done.accuracy is None else f"{done.accuracy:.1%}",
        "epsilon": done.guarantee.epsilon,
        "delta": done.guarantee.delta,
        "relation": done.guarantee.relation.value,
        "epsilon against the server": None if server is None else server.epsilon,
        "recorded": done.recorded,
        "account": done.account,
        "folder": settings.folder,
        "report": settings.report,
    }
    show_facts(str(done.guarantee), {k: v for k, v in facts.items() if v is not None}, as_json=False)
    show_text(f"\n{done.statement()}")
    for note in more:
        show_text(f"\nNote: {note}.")


def _empty_note(clients: ClientRows) -> str | None:
    """Return what must be said of clients without rows: the data sets of the command are public."""
    empty = clients.without_rows if isinstance(clients, AssignedRows) else 0
    if not empty:
        return None
    return f"{empty} of {len(clients)} clients have no rows, and contribute nothing when they are asked"
