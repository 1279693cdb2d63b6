# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato fit`: a small private model of a file or a database."""

import inspect
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato import _json
from sfumato.accounting import Relation
from sfumato.cli.options import AccountName, ChargedTo, Json, PrivacyUnit, Relations, Source, Typed
from sfumato.cli.releases import model_facts, require_place
from sfumato.cli.show import show_facts, waiting
from sfumato.cli.stats import charged, named_values, opened
from sfumato.errors import InvalidParameterError

__all__ = ["command"]


_FLAGS = {"classes": "label"}  # options that are not called as the parameter is


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
    label: Annotated[list[str] | None, typer.Option(help="A class of the target; repeat for all.")] = None,
    method: Annotated[str | None, typer.Option(help="Of logistic regression: objective, output.")] = None,
    feature_bounds: Annotated[tuple[float, float] | None, typer.Option(help="Public bounds of x.")] = None,
    target_bounds: Annotated[tuple[float, float] | None, typer.Option(help="Public bounds of y.")] = None,
    type_of: Typed = None,
    privacy_unit: PrivacyUnit = None,
    relation: Relations = Relation.ADD_REMOVE.value,
    ledger: ChargedTo = None,
    account: AccountName = None,
    purpose: Annotated[str | None, typer.Option(help="Why; it is recorded.")] = None,
    out: Annotated[str | None, typer.Option(help="Write the coefficients here, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Fit a small model to private data and show its coefficients with their guarantee."""
    from sfumato.private import fit

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
    require_place(out, suffixes=(), others=(source, ledger))
    kind = _kind(model, {"epsilon": epsilon, "relation": relation} | said)
    table = opened(source, privacy_unit, 1, type_of)
    if label:
        said["classes"] = named_values(table, target, tuple(label))
    if feature and (target in feature or len(set(feature)) < len(feature)):
        raise InvalidParameterError(
            "each column is named once: the --target is no --feature, and a --feature is not repeated."
        )
    estimator = kind(epsilon=epsilon, relation=relation, **said)
    with waiting("Fitting"):
        fitted = fit(
            table, estimator, target=target, features=feature or None, account=payer, purpose=purpose
        )
    facts = _facts(fitted) | model_facts(fitted.guarantee_, payer, fitted.notes_)
    show_facts(f"{model.value}: {target}", facts, as_json=as_json)
    if out is not None:
        Path(out).write_text(_json.dumps(facts) + "\n", encoding="utf-8")


def _kind(model: Model, said: dict[str, Any]) -> Any:
    """Return the class of a model, if what is said is what it needs."""
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
    missing = [f"--{_FLAGS.get(name, name.replace('_', '-'))}" for name in _needed(kind) if name not in said]
    if missing:
        raise InvalidParameterError(
            f"{model.value} needs {', '.join(missing)}: public, not read from the data"
            + (", such as --delta 1e-6." if "--delta" in missing else ".")
        )
    return kind


def _needed(kind: Any) -> list[str]:
    """Return the parameters without which a model cannot be made; all commands have an epsilon."""
    given = inspect.signature(kind).parameters.values()
    return [each.name for each in given if each.default is inspect.Parameter.empty and each.name != "epsilon"]


def _facts(fitted: Any) -> dict[str, Any]:
    if getattr(fitted, "failed_", False):
        return {"outcome": "failed", "coefficients": None, "intercept": None}
    classes = getattr(fitted, "classes_", None)
    return ({} if classes is None else {"classes": classes.tolist()}) | {
        "outcome": "released",
        "coefficients": [float(value) for value in fitted.coef_.ravel()],
        "intercept": [float(value) for value in _flat(fitted.intercept_)],
    }


def _flat(value: Any) -> list[Any]:
    return list(value) if hasattr(value, "__len__") else [value]
