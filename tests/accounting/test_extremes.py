# SPDX-License-Identifier: Apache-2.0
"""Numbers that no float can answer for give an error of ours, and fractions are taken as floats."""

import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from dp_accounting import dp_event as dp

from sfumato.accounting import (
    Relation,
    calibrate,
    calibrate_count,
    composition,
    dp_sgd,
    events,
    gaussian,
    plan,
    pld,
    price,
    rdp,
    zcdp,
)
from sfumato.accounting.extremes import in_floats
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.ledger import Account, Budget, Ledger

ADD_REMOVE = Relation.ADD_REMOVE
TINY, HUGE = 5e-324, 10**400
EXTREMES = [
    TINY,
    1e-320,
    1e-300,
    1e300,
    1.7e308,
    HUGE,
    -HUGE,
    Fraction(1, HUGE),
    Fraction(HUGE),
    math.inf,
    math.nan,
]
RUN = dp_sgd(noise_multiplier=1.0, sampling_rate=0.01, steps=100)

PLAIN: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "price": (price, {"event": RUN, "delta": 1e-5}),
    "plan noise": (plan, {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 10}),
    "plan sizes": (plan, {"epsilon": 1.0, "public_size": 100, "expected_batch_size": 10, "epochs": 1}),
    "plan steps": (plan, {"epsilon": 9.0, "delta": 1e-5, "sampling_rate": 0.1, "noise_multiplier": 2.0}),
    "plan rate": (plan, {"epsilon": 9.0, "delta": 1e-5, "steps": 10, "noise_multiplier": 2.0}),
    "dp_sgd": (dp_sgd, {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10}),
    "calibrate": (calibrate, {"make_event": dp.GaussianDpEvent, "epsilon": 1.0, "delta": 1e-5}),
    "calibrate_count": (
        calibrate_count,
        {
            "make_event": lambda n: dp.SelfComposedDpEvent(dp.GaussianDpEvent(9.0), n),
            "epsilon": 1.0,
            "delta": 1e-5,
        },
    ),
    "gaussian.delta": (gaussian.delta, {"mu": 1.0, "epsilon": 1.0}),
    "gaussian.epsilon": (gaussian.epsilon, {"mu": 1.0, "delta": 1e-5}),
    "gaussian.stddev_for": (gaussian.stddev_for, {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 1.0}),
    "gaussian.classic_stddev": (gaussian.classic_stddev, {"epsilon": 0.5, "delta": 1e-5, "sensitivity": 1.0}),
    "rdp.epsilon": (rdp.epsilon, {"event": RUN, "delta": 1e-5, "relation": ADD_REMOVE}),
    "rdp.largest_rdp": (rdp.largest_rdp, {"epsilon": 1.0, "delta": 1e-5, "order": 4.0}),
    "rdp.epsilon_at": (rdp.epsilon_at, {"value": 1.0, "delta": 1e-5, "order": 4.0}),
    "zcdp.epsilon": (zcdp.epsilon, {"event": dp.GaussianDpEvent(2.0), "delta": 1e-5, "relation": ADD_REMOVE}),
    "pld.interval": (pld.interval, {"event": RUN, "delta": 1e-5, "relation": ADD_REMOVE}),
    "advanced": (composition.advanced, {"epsilon": 0.1, "delta": 1e-6, "count": 10, "slack": 1e-6}),
    "optimal": (composition.optimal, {"epsilon": 0.1, "delta": 1e-6, "count": 10, "target_delta": 1e-4}),
    "Budget": (Budget, {"epsilon": 1.0, "delta": 1e-5}),
}
# A search over 1e8 steps, at an epsilon that allows all of them, or over 1e302 takes half a minute.
SLOW = {("plan steps", "epsilon"), ("plan sizes", "expected_batch_size")}


def _marks(name: str, argument: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if (name, argument) in SLOW else []


CASES = [
    pytest.param(name, argument, value, id=f"{name} {argument} {number}", marks=_marks(name, argument))
    for name, (_, arguments) in PLAIN.items()
    for argument, given in arguments.items()
    if isinstance(given, int | float)
    for number, value in enumerate(EXTREMES)
]


@pytest.mark.parametrize(("name", "argument", "value"), CASES)
def test_an_extreme_number_has_an_answer_or_an_error_of_ours(name: str, argument: str, value: Any) -> None:
    function, arguments = PLAIN[name]
    with suppress(SfumatoError):
        function(**(arguments | {argument: value}))


EVENTS: list[Callable[[Any], events.DpEvent]] = [
    dp.GaussianDpEvent,
    dp.LaplaceDpEvent,
    events.PureDpEvent,
    lambda x: events.ApproximateDpEvent(x, 1e-6),
    lambda x: events.ApproximateDpEvent(0.5, x),
    lambda x: dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), x),
    lambda x: dp.PoissonSampledDpEvent(x, dp.GaussianDpEvent(2.0)),
    lambda x: dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), x),
]


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Account:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "ledger.db", person="ada")
    return ledger.open("a", privacy_unit="u", budget=Budget(epsilon=1.0, delta=1e-6))


@pytest.mark.parametrize("value", EXTREMES, ids=range(len(EXTREMES)))
@pytest.mark.parametrize("make", EVENTS, ids=range(len(EVENTS)))
def test_an_event_of_extreme_numbers_has_a_price_or_an_error_of_ours(
    account: Account, make: Callable[[Any], events.DpEvent], value: Any
) -> None:
    try:
        event = make(value)
    except (TypeError, ValueError, OverflowError):
        return  # dp_accounting itself does not make it
    for ask in (
        lambda: price(event, delta=1e-5),
        lambda: account.admits(event),
        lambda: account.reserve(event, purpose="p", relation=ADD_REMOVE),
    ):
        with suppress(SfumatoError):
            ask()


@pytest.mark.parametrize("noise", [5e-324, 1e-320, 1e-310, 1e-300])
def test_next_to_no_noise_is_no_privacy(noise: float) -> None:
    for event in (dp.LaplaceDpEvent(noise), dp.SelfComposedDpEvent(dp.LaplaceDpEvent(noise), 3)):
        assert price(event, delta=1e-5).epsilon > 1e200


def test_fractions_are_taken_as_floats() -> None:
    third = Fraction(1, 3)
    assert plan(epsilon=third, delta=Fraction(1, 10**5), sampling_rate=third, steps=3) == plan(
        epsilon=1 / 3, delta=1e-5, sampling_rate=1 / 3, steps=3
    )
    assert gaussian.stddev_for(third, 1e-5, third) == gaussian.stddev_for(1 / 3, 1e-5, 1 / 3)
    assert Budget(epsilon=third, delta=0).epsilon == 1 / 3


def test_an_event_with_a_fraction_in_it_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidParameterError, match=r"must be a float.*Convert it with float"):
        price(dp.GaussianDpEvent(Fraction(1, 3)), delta=1e-5)


def test_a_budget_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="at least 1e-300"):
        Budget(epsilon=1, delta=5e-324)


def test_errors_of_others_pass_through() -> None:
    def wrong(_: float) -> events.DpEvent:
        raise ValueError("a mistake in the caller's own function")

    with pytest.raises(ValueError, match="a mistake in the caller"):
        calibrate(wrong, epsilon=1.0, delta=1e-5)


def test_the_signature_stays() -> None:
    names = list(inspect.signature(in_floats(gaussian.stddev_for)).parameters)
    assert names == ["epsilon", "delta", "sensitivity"]
