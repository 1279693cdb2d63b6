# SPDX-License-Identifier: Apache-2.0
"""The command `sfumato fit`: a small private model of a file or a database."""

import inspect
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato import _json
from sfumato.accounting import Relation
from sfumato.cli.completion_values import among
from sfumato.cli.help_pages import LEARNING, OUTPUT, PRIVACY, YOUR_DATA
from sfumato.cli.options import AccountName, ChargedTo, Json, PrivacyUnit, Purpose, Relations, Source, Typed
from sfumato.cli.project.defaults import choose
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
    model: Annotated[Model, typer.Argument(help="The model to fit.", show_default=False)],
    *,
    target: Annotated[str, typer.Option(help="The column to predict.", rich_help_panel=YOUR_DATA)],
    feature: Annotated[
        list[str] | None,
        typer.Option(
            help="A column to predict from; repeat for more. Default: all columns of numbers.",
            rich_help_panel=YOUR_DATA,
        ),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="What the fit may cost, above 0.", rich_help_panel=PRIVACY)],
    delta: Annotated[
        float,
        typer.Option(
            help="The delta of the guarantee. ada-ssp and tukey-em need one above 0.", rich_help_panel=PRIVACY
        ),
    ] = 0.0,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            help="Of logistic-regression and ada-ssp: a public bound on the norm of a row of features.",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Of logistic-regression: a class of the target; repeat for all.", rich_help_panel=YOUR_DATA
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Of logistic-regression: what noise is added to, objective or output.",
            rich_help_panel=LEARNING,
            autocompletion=among("objective", "output"),
        ),
    ] = None,
    feature_bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="Of lines: public bounds of the feature.",
            rich_help_panel=YOUR_DATA,
            metavar="LOWER UPPER",
        ),
    ] = None,
    target_bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="Of lines and ada-ssp: public bounds of the target.",
            rich_help_panel=YOUR_DATA,
            metavar="LOWER UPPER",
        ),
    ] = None,
    type_of: Typed = None,
    privacy_unit: PrivacyUnit = None,
    relation: Relations = Relation.ADD_REMOVE.value,
    ledger: ChargedTo = None,
    account: AccountName = None,
    purpose: Purpose = None,
    out: Annotated[
        str | None, typer.Option(help="Write the coefficients here, as JSON.", rich_help_panel=OUTPUT)
    ] = None,
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
    chosen = choose(source, ledger=ledger, account=account, privacy_unit=privacy_unit, types=type_of)
    payer = charged(chosen.ledger, chosen.account)
    require_place(out, suffixes=(), others=(source, chosen.ledger))
    kind = _kind(model, {"epsilon": epsilon, "relation": relation} | said)
    table = opened(source, chosen.privacy_unit, 1, chosen.types)
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
