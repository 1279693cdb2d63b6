# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.audit import Canaries
from sfumato.errors import InvalidParameterError
from sfumato.training.run_audit import require_audit


def test_canaries_and_nothing_at_all_are_accepted():
    require_audit(None)
    require_audit(Canaries(count=100))


@pytest.mark.parametrize("given", [1000, True, "canaries", Canaries, object()])
def test_anything_else_is_refused_with_what_to_pass(given):
    with pytest.raises(InvalidParameterError, match=r"Canaries\(count=1000\)"):
        require_audit(given)


def test_the_advice_can_be_followed():
    with pytest.raises(InvalidParameterError) as refused:
        require_audit(3)
    count = int(str(refused.value).split("count=")[1].split(")")[0])
    require_audit(Canaries(count=count))
