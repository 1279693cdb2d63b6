# SPDX-License-Identifier: Apache-2.0
import array
import io

import pytest
import torch

from sfumato.errors import NotPrivateError
from sfumato.training.integrity.release_barrier import Barrier

from ..leaky import LEAKY, UNMARKED, Part, X, quietly, state


@pytest.mark.parametrize("way", LEAKY)
def test_what_a_pass_leaves_is_refused_named_and_put_back(way):
    do, name = LEAKY[way]
    model = Part(quietly(do))
    before = state(model)
    refused = pytest.raises(NotPrivateError, match=rf"\['{name}'[\],].*put back to what it was")
    with refused as error, Barrier(model).guarding(thorough=True):
        model(X)
    assert "777" not in str(error.value)
    assert state(model) == before
    model.do = None
    with Barrier(model).guarding(thorough=True):
        model(X)


@pytest.mark.parametrize("way", LEAKY)
def test_a_quick_check_finds_all_but_writes_that_leave_no_mark(way):
    do, name = LEAKY[way]
    model = Part()
    barrier = Barrier(model)
    with barrier.guarding(thorough=True):
        model(X)
    model.do = quietly(do)
    if way in UNMARKED:
        with barrier.guarding(thorough=False):
            model(X)
        return
    before = state(model)
    with pytest.raises(NotPrivateError, match=rf"\['{name}'[\],]"), barrier.guarding(thorough=False):
        model(X)
    if not way.startswith("trainable"):
        assert state(model) == before


@pytest.mark.parametrize("way", ["trainable, under no_grad", "trainable, .data replaced"])
def test_what_a_quick_check_cannot_put_back_is_said_to_be_lost(way):
    model = Part(quietly(LEAKY[way][0]))
    refused = pytest.raises(NotPrivateError, match=r"could not be put back in \['weight'\]: do not release")
    with refused, Barrier(model).guarding(thorough=False):
        model(X)


def test_a_quick_check_reads_nothing_from_tensors():
    barrier = Barrier(Part())
    with barrier.guarding(thorough=True):
        pass

    class Reading(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            called.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    called = []
    with Reading(), barrier.guarding(thorough=False):
        pass
    assert set(called) <= {"data_ptr", "__get__"}


ELSEWHERE = []


def test_rows_of_vmap_that_are_kept_anywhere_are_found_at_some_passes():
    model = Part(lambda m, x: ELSEWHERE.append(x))
    barrier = Barrier(model)
    with pytest.raises(NotPrivateError, match="outside of the modules"):
        for _ in range(16):
            with barrier.guarding():
                torch.func.vmap(model)(X)
    ELSEWHERE.clear()
    barrier = Barrier(Part())
    for _ in range(16):
        with barrier.guarding():
            torch.func.vmap(model)(X)
            ELSEWHERE.clear()


@pytest.mark.parametrize(
    ("make", "keep"),
    [
        (io.StringIO, lambda kept, x: kept.write(str(x.sum().item()))),
        (io.BytesIO, lambda kept, x: kept.write(b"777")),
        (lambda: array.array("d"), lambda kept, x: kept.append(777.0)),
    ],
)
def test_objects_that_show_nothing_of_what_they_hold_are_compared_as_they_would_be_saved(make, keep):
    model = Part(lambda m, x: keep(m.kept, x))
    model.kept = make()
    refused = pytest.raises(NotPrivateError, match=r"\['kept'\].*could not be put back in \['kept'\]")
    with refused as error, Barrier(model).guarding(thorough=True):
        model(X)
    assert "777" not in str(error.value)
