# SPDX-License-Identifier: Apache-2.0
"""The commands of `sfumato`: what would it cost, train, publish, audit, and the ledger."""

from typing import Annotated, Any

import typer

import sfumato
from sfumato import _check
from sfumato.accounting import Accountant, Plan, Price, Relation, dp_sgd, plan, price
from sfumato.accounting.default_delta import delta_note
from sfumato.accounting.events import DpEvent, from_json
from sfumato.cli import (
    audit,
    card,
    completion,
    federate,
    fit,
    ledger,
    pate,
    reproduce,
    sql,
    stats,
    synthesize,
    train,
)
from sfumato.cli.completion_values import accounts
from sfumato.cli.doctor import command as doctor
from sfumato.cli.help_pages import LEARNING, LEDGER, PRIVACY, App
from sfumato.cli.options import Delta, Json, Relations
from sfumato.cli.project import init
from sfumato.cli.show import show_facts, waiting
from sfumato.errors import InvalidParameterError

__all__ = ["app"]

app = App(
    name="sfumato",
    help="Learn from private data with differential privacy, and keep one ledger of what it cost.",
    pretty_exceptions_enable=False,
)

_START = "Start"
_PUBLISH = "Publish from a file or a database"
_LEARN = "Learn"
_SPEND = "Cost and budget"
_CHECK = "Check"

# The example of each command is one of those of docs/cli.md, which are run by the tests.
app.command("init", rich_help_panel=_START, epilog="sfumato init study --privacy-unit client_id")(
    init.command
)
app.command("doctor", rich_help_panel=_START, epilog="sfumato doctor")(doctor.command)
app.command("completion", rich_help_panel=_START, epilog="sfumato completion bash")(completion.command)
app.command(
    "stats",
    rich_help_panel=_PUBLISH,
    epilog="sfumato stats people.csv mean age --type age=number --bounds 18 100 --epsilon 0.1",
)(stats.command)
app.command(
    "sql",
    rich_help_panel=_PUBLISH,
    epilog='sfumato sql people.csv "SELECT COUNT(*), AVG(age) FROM data" --type age=number '
    "--bounds age=18,100 --epsilon 0.5",
)(sql.command)
app.command(
    "fit",
    rich_help_panel=_PUBLISH,
    epilog="sfumato fit people.csv theil-sen --target income --feature age --type income=number "
    "--type age=number --feature-bounds 18 100 --target-bounds 0 5000 --epsilon 1 --out line.json",
)(fit.command)
app.command("train", rich_help_panel=_LEARN, epilog="sfumato train digits --epsilon 3")(train.command)
app.command("pate", rich_help_panel=_LEARN, epilog="sfumato pate digits --teachers 20 --epsilon 8")(
    pate.command
)
app.command(
    "synthesize",
    rich_help_panel=_LEARN,
    epilog="sfumato synthesize digits --method mixtures --epsilon 10 --out digits-made",
)(synthesize.command)
app.command(
    "federate",
    rich_help_panel=_LEARN,
    epilog="sfumato federate digits --epsilon 8 --clients 100 --rounds 5 --report federation.html",
)(federate.command)
app.add_typer(ledger.app, name="ledger", rich_help_panel=_SPEND)


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


_MULTIPLIER = "The standard deviation of the noise, divided by the clip norm."
_RATE = "The chance that a unit is in one batch, above 0 and at most 1."
_STEPS = "How many noisy updates the run has."


@app.command(
    rich_help_panel=_SPEND,
    epilog="sfumato account --noise-multiplier 1.1 --sampling-rate 0.01 --steps 1000 --delta 1e-5",
)
def account(
    *,
    delta: Delta,
    noise_multiplier: Annotated[float | None, typer.Option(help=_MULTIPLIER)] = None,
    sampling_rate: Annotated[float, typer.Option(help=_RATE)] = 1.0,
    steps: Annotated[int, typer.Option(help=_STEPS)] = 1,
    event: Annotated[
        str | None,
        typer.Option(help="Any event as JSON, in place of noise multiplier, sampling rate and steps."),
    ] = None,
    relation: Relations = Relation.ADD_REMOVE.value,
    accountant: Annotated[
        Accountant | None, typer.Option(help="Which accountant computes the cost. Default: the tightest one.")
    ] = None,
    privacy_unit: Annotated[str, typer.Option(help="Who is protected; it is only printed.")] = "example",
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


@app.command(
    "plan",
    rich_help_panel=_SPEND,
    epilog="sfumato plan --epsilon 3 --public-size 60000 --expected-batch-size 1024 --epochs 30",
)
def plan_command(
    *,
    epsilon: Annotated[
        float | None, typer.Option(help="The epsilon to meet.", rich_help_panel=PRIVACY)
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="The delta of the guarantee. Default: the largest power of ten below 1 / public size.",
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help=_MULTIPLIER, rich_help_panel=PRIVACY)] = None,
    sampling_rate: Annotated[float | None, typer.Option(help=_RATE, rich_help_panel=LEARNING)] = None,
    steps: Annotated[int | None, typer.Option(help=_STEPS, rich_help_panel=LEARNING)] = None,
    public_size: Annotated[
        int | None, typer.Option(help="The number of units, if it is public.", rich_help_panel=LEARNING)
    ] = None,
    expected_batch_size: Annotated[
        float | None,
        typer.Option(
            help="The sampling rate times the public size, in place of the rate.", rich_help_panel=LEARNING
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="The steps times the sampling rate, in place of the steps.", rich_help_panel=LEARNING
        ),
    ] = None,
    relation: Relations = Relation.ADD_REMOVE.value,
    ledger_at: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            help="Fit the run into what an account of this ledger has left.",
            rich_help_panel=LEDGER,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--account",
            help="The account in that ledger.",
            rich_help_panel=LEDGER,
            autocompletion=accounts,
        ),
    ] = None,
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


app.command("audit", rich_help_panel=_CHECK, epilog="sfumato audit runs/audited")(audit.command)
app.command("card", rich_help_panel=_CHECK, epilog="sfumato card --account credit")(card.command)
app.command("reproduce", rich_help_panel=_CHECK, epilog="sfumato reproduce --list")(reproduce.command)
