# SPDX-License-Identifier: Apache-2.0
from sfumato.cli.doctor.findings import Finding, State, checked

FINE = Finding(area="a", name="n", state=State.OK, found="it is fine")


def test_what_a_check_finds_is_passed_on():
    assert list(checked("a", lambda: [FINE])) == [FINE]
    assert FINE.to_dict() == {"area": "a", "name": "n", "state": "ok", "found": "it is fine", "advice": None}


def test_a_check_that_fails_is_a_finding_and_keeps_what_it_found_before():
    def failing():
        yield FINE
        raise RuntimeError("no such thing")

    first, second = checked("a", failing)
    assert first == FINE
    assert second.state is State.BROKEN and "RuntimeError: no such thing" in second.found
