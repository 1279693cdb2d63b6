# SPDX-License-Identifier: Apache-2.0
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import FastGenerator, resolve
from sfumato.testing import seeded
from sfumato.training import distributed
from sfumato.training.random_state import RandomState, StepDraws, cuda_devices, private_draws, same_draws

GPU = torch.cuda.is_available()


def test_draws_inside_do_not_change_the_draws_after():
    with same_draws():
        wanted = torch.rand(3)
    with same_draws([torch.device("cpu")]):
        torch.rand(5)
        nn.Linear(3, 2)
    assert torch.equal(torch.rand(3), wanted)


def test_the_state_is_put_back_after_an_error_too():
    before = RandomState()
    with pytest.raises(KeyError), same_draws():
        torch.rand(1)
        raise KeyError
    assert before.same_as(RandomState())


def test_a_state_differs_once_something_was_drawn():
    before = RandomState()
    assert before.same_as(RandomState())
    torch.rand(1)
    assert not before.same_as(RandomState())


def test_a_state_draws_the_same_again_and_leaves_the_generators_alone():
    state = RandomState()
    first, later = torch.rand(4), RandomState()
    for _ in range(2):
        with state.again():
            assert torch.equal(torch.rand(4), first)
    assert later.same_as(RandomState())


def test_each_cuda_device_is_kept_once():
    kinds = [torch.device(name) for name in ("cuda:1", "cpu", "cuda:0", "cuda:1")]
    assert cuda_devices(kinds) == [torch.device("cuda:0"), torch.device("cuda:1")]


def test_draws_from_a_seed_are_the_same_each_time_and_are_left_behind():
    before, found = RandomState(), []
    for seed in (3, 3, 4):
        with same_draws(seed=seed):
            found.append(tuple(torch.rand(3).tolist()))
    assert found[0] == found[1] != found[2] and before.same_as(RandomState())


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_the_states_of_cuda_devices_are_put_back_too():
    x = torch.zeros(2, device="cuda")
    state = RandomState([x.device])
    with same_draws([x.device], seed=1):
        torch.rand(3, device="cuda")
    assert state.same_as(RandomState([x.device]))


# --- work on private rows --------------------------------------------------------------------------------


def states():
    """Return the states of all global generators of the CPU, to compare."""
    name, keys, place, stored, normal = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), (name, keys.tolist(), place, stored, normal), random.getstate()


def draw(rows):
    """Draw from all global generators as code of a user might: an odd number leaves a normal in store."""
    torch.randn(2 * rows + 1)
    torch.bernoulli(torch.full((rows,), 0.5))
    np.random.standard_normal(2 * rows + 1)  # noqa: NPY002
    random.gauss(0, 1)
    return [random.random() for _ in range(rows)]


def drawn():
    return torch.rand(2).tolist(), np.random.random(2).tolist(), random.random()  # noqa: NPY002


def drawn_by(generator, purpose, index):
    with private_draws(generator, purpose, index):
        return drawn()


@pytest.mark.parametrize(
    "generator", [resolve(None), seeded(3), FastGenerator()], ids=lambda g: type(g).__name__
)
def test_private_draws_leave_every_generator_as_it_was(generator):
    np.random.standard_normal(2)  # noqa: NPY002 - none is left in store
    before = states()
    for rows in (0, 1, 5):
        with private_draws(generator, "step", rows):
            draw(rows)
        assert states() == before


def test_private_draws_leave_no_trace_after_an_error():
    before = states()
    with pytest.raises(KeyError), private_draws(resolve(None), "step", 0):
        draw(4)
        raise KeyError
    assert states()[::2] == before[::2] and drawn_by(seeded(1), "step", 0) == drawn_by(seeded(1), "step", 0)


def test_a_stored_normal_of_numpy_tells_nothing():
    for rows in (0, 1, 2):
        np.random.standard_normal(1)  # noqa: NPY002 - one is in store
        with private_draws(resolve(None), "step", 0):
            np.random.standard_normal(rows)  # noqa: NPY002
        assert not np.random.get_state()[3]  # noqa: NPY002


def test_draws_of_the_caller_go_on_between_private_draws():
    torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002
    wanted = [drawn() for _ in range(3)]
    torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002
    found = []
    for step in range(3):
        with private_draws(seeded(1), "step", step):
            draw(step)
        found.append(drawn())
    assert found == wanted and wanted[0] != wanted[1] != wanted[2]


def test_each_step_purpose_and_seed_draws_anew_and_a_seed_repeats_it():
    cases = [(1, "step", 0), (1, "step", 1), (1, "open", 0), (2, "step", 0)]
    found = [drawn_by(seeded(seed), purpose, index) for seed, purpose, index in cases]
    assert len({str(each) for each in found}) == 4
    assert found == [drawn_by(seeded(seed), purpose, index) for seed, purpose, index in cases]


def test_ranks_draw_apart(monkeypatch):
    first = drawn_by(seeded(1), "step", 0)
    monkeypatch.setattr(distributed, "rank", lambda: 1)
    assert drawn_by(seeded(1), "step", 0) != first


def test_draws_without_a_seed_are_fresh_whatever_the_state_outside():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)  # noqa: NPY002
    found = [drawn_by(generator, "step", 0) for generator in (resolve(None), resolve(None), FastGenerator())]
    for place in range(3):
        assert len({str(each[place]) for each in found}) == 3


def test_torch_and_numpy_do_not_draw_alike():
    with private_draws(seeded(1), "step", 0):
        bits = torch.randint(0, 2**32, (20,)), np.random.randint(0, 2**32, 20, dtype=np.uint64)  # noqa: NPY002
    assert not set(bits[0].tolist()) & set(bits[1].tolist())


def test_a_context_inside_of_another_goes_on_with_its_draws():
    before = states()
    with private_draws(seeded(1), "step", 0):
        first = drawn()
        with private_draws(seeded(1), "step", 0):
            second = drawn()
        third = drawn()
    assert len({str(first), str(second), str(third)}) == 3 and states()[::2] == before[::2]


def test_threads_that_overlap_leave_the_state_from_before_the_first():
    before, entered, left = states(), threading.Event(), threading.Event()

    def other():
        with private_draws(resolve(None), "step", 0):
            draw(3)
            entered.set()
            left.wait(60)
            draw(2)

    thread = threading.Thread(target=other)
    with private_draws(resolve(None), "step", 0):
        thread.start()
        assert entered.wait(60)
    assert states()[::2] != before[::2]  # the other one is at work
    left.set()
    thread.join()
    assert states()[::2] == before[::2]


def test_a_generator_that_refuses_leaves_everything_as_it_was():
    class Refusing:
        secure, seeded = False, True

        def fork(self, label, index):
            raise InvalidParameterError("no")

    before = states()
    with pytest.raises(InvalidParameterError), private_draws(Refusing(), "step", 0):
        pass
    assert states() == before
    test_a_context_inside_of_another_goes_on_with_its_draws()


def test_the_parts_of_a_step_draw_apart_and_are_repeated_with_their_step():
    def found(draws, step):
        with draws.part(seeded(1), step):
            return drawn()

    one, other = StepDraws(), StepDraws()
    first = [found(one, step) for step in (0, 0, 0, 1, 1)]
    assert len({str(each) for each in first}) == 5
    assert [found(other, step) for step in (1, 1)] == first[3:]


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_private_draws_leave_cuda_devices_as_they_were():
    torch.zeros(2, device="cuda")
    before = RandomState([torch.device("cuda:0")])
    found = []
    for rows in (1, 700):
        with private_draws(resolve(None), "step", 0):
            found.append(torch.rand(rows, device="cuda")[0].item())
        assert before.same_as(RandomState([torch.device("cuda:0")]))
    assert found[0] != found[1]
