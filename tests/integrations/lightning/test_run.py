# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.integrations.lightning.run import StepOrder, require_in_step


def test_each_batch_is_one_gradient_and_one_move():
    order = StepOrder()
    for _ in range(3):
        order.begin()
        order.computing()
        assert not order.between_steps
        order.moved()
        assert order.between_steps


@pytest.mark.parametrize(
    ("calls", "word"),
    [
        (["begin", "begin"], "not followed by a step"),
        (["begin", "computing", "begin"], "not followed by a step"),
        (["computing"], "asked for twice"),
        (["begin", "computing", "computing"], "asked for twice"),
        (["begin", "computing", "moved", "computing"], "asked for twice"),
        (["begin", "moved"], "without a new gradient"),
        (["begin", "computing", "moved", "moved"], "without a new gradient"),
    ],
)
def test_any_other_order_is_refused(calls, word):
    order = StepOrder()
    *first, last = calls
    for call in first:
        getattr(order, call)()
    with pytest.raises(InvalidParameterError, match=word):
        getattr(order, last)()


def test_steps_that_are_counted_differently_are_refused():
    with pytest.raises(SfumatoError, match="counted 3 steps, but 2 were taken"):
        require_in_step(3, 2)
