# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato fit`: a small private model of a file or a database."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato import _json
from sfumato.accounting import Relation
from sfumato.cli.options import AccountName, ChargedTo, Json, PrivacyUnit, Relations, Source
from sfumato.cli.releases import model_facts, require_place
from sfumato.cli.show import show_facts, waiting
from sfumato.cli.stats import charged, opened
from sfumato.errors import InvalidParameterError

__all__ = ["command"]


class Model(StrEnum):
    """What can be fitted."""

    LOGISTIC_REGRESSION = "logistic-regression"
    NOISY_STATS = "noisy-stats"
    THEIL_SEN = "theil-sen"
    ADA_SSP = "ada-ssp"
    TUKEY_EM = "tukey-em"


def command(
    source: Source,
    model: Annotated[Model, typer.Argument(help="What to fit.", show_default=False)],
    *,
    target: Annotated[str, typer.Option(help="The column to predict.")],
    feature: Annotated[
        list[str] | None, typer.Option(help="A column to predict from; repeat for more. All numbers if none.")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="What the fit may cost.")],
    delta: Annotated[
        float, typer.Option(help="The delta of the guarantee; 0 where a model can be pure.")
    ] = 0.0,
    clip_norm: Annotated[float | None, typer.Option(help="Public bound on the norm of a row.")] = None,
    label: Annotated[list[float] | None, typer.Option(help="A class of the target; repeat for all.")] = None,
    method: Annotated[str | None, typer.Option(help="Of logistic regression: objective, output.")] = None,
    feature_bounds: Annotated[tuple[float, float] | None, typer.Option(help="Public bounds of x.")] = None,
    target_bounds: Annotated[tuple[float, float] | None, typer.Option(help="Public bounds of y.")] = None,
    privacy_unit: PrivacyUnit = None,
    relation: Relations = Relation.ADD_REMOVE.value,
    ledger: ChargedTo = None,
    account: AccountName = None,
    purpose: Annotated[str | None, typer.Option(help="Why; it is recorded.")] = None,
    out: Annotated[str | None, typer.Option(help="Write the coefficients here, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Fit a small model to private data and show its coefficients with their guarantee."""
    given = {
        "clip_norm": clip_norm,
        "classes": tuple(label) if label else None,
        "method": method,
        "feature_bounds": feature_bounds,
        "target_bounds": target_bounds,
        "delta": delta or None,
    }
    said = {name: value for name, value in given.items() if value is not None}
    payer = charged(ledger, account)
    require_place(out)
    estimator = _estimator(model, {"epsilon": epsilon, "relation": relation} | said)
    with waiting("Fitting"):
        fitted = _fitted(source, privacy_unit, payer, estimator, target, feature, purpose)
    facts = _facts(fitted) | model_facts(fitted.guarantee_, payer, fitted.notes_)
    show_facts(f"{model.value}: {target}", facts, as_json=as_json)
    if out is not None:
        Path(out).write_text(_json.dumps(facts) + "\n", encoding="utf-8")


def _estimator(model: Model, said: dict[str, Any]) -> Any:
    from sfumato import estimators as e

    kind = {
        Model.LOGISTIC_REGRESSION: e.LogisticRegression,
        Model.NOISY_STATS: e.NoisyStats,
        Model.THEIL_SEN: e.TheilSen,
        Model.ADA_SSP: e.AdaSSP,
        Model.TUKEY_EM: e.TukeyEM,
    }[model]
    names: list[str] = kind._get_param_names()  # type: ignore[attr-defined]  # scikit-learn's own list
    if unknown := sorted(set(said) - set(names)):
        raise InvalidParameterError(f"{model.value} takes no {', '.join(unknown)}: leave it out.")
    flags = {"classes": "label", "feature_bounds": "feature-bounds", "target_bounds": "target-bounds"}
    needed = [name for name in ("clip_norm", "classes", "feature_bounds", "target_bounds") if name in names]
    missing = [f"--{flags.get(name, name.replace('_', '-'))}" for name in needed if name not in said]
    if missing:
        raise InvalidParameterError(
            f"{model.value} needs {', '.join(missing)}: public, not read from the data."
        )
    return kind(**said)


def _fitted(
    source: str,
    privacy_unit: str | None,
    payer: Any,
    estimator: Any,
    target: str,
    features: list[str] | None,
    purpose: str | None,
) -> Any:
    from sfumato.private import fit

    return fit(
        opened(source, privacy_unit, 1),
        estimator,
        target=target,
        features=features or None,
        account=payer,
        purpose=purpose,
    )


def _facts(fitted: Any) -> dict[str, Any]:
    if getattr(fitted, "failed_", False):
        return {"outcome": "failed", "coefficients": None, "intercept": None}
    return {
        "outcome": "released",
        "coefficients": [float(value) for value in fitted.coef_.ravel()],
        "intercept": [float(value) for value in _flat(fitted.intercept_)],
    }


def _flat(value: Any) -> list[Any]:
    return list(value) if hasattr(value, "__len__") else [value]
