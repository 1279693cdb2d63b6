# SPDX-License-Identifier: Apache-2.0
import gc

import pytest

from sfumato.cli.quick_start import uncollected


@pytest.fixture(autouse=True)
def collector():
    yield
    gc.enable()
    gc.unfreeze()


def test_the_collector_is_paused_inside_and_runs_again_after():
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() > 0


def test_the_collector_runs_again_after_a_failure():
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
