# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.training.data.modes import Modes, kept_modes
from sfumato.training.data.readable_rows import ReadableRows

CHANGES = {
    "gradients": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "inference": (torch.is_inference_mode_enabled, lambda: HELD.append(entered(torch.inference_mode()))),
    "default type": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda: HELD.append(entered(torch.autocast("cpu"))),
    ),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        lambda: torch.use_deterministic_algorithms(True),
    ),
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "precision": (
        torch.get_float32_matmul_precision,
        lambda: torch.set_float32_matmul_precision("medium"),
    ),
}
HELD = []  # contexts that are entered and never left


def entered(context):
    context.__enter__()
    return context


@pytest.mark.parametrize("kind", CHANGES)
def test_a_mode_that_a_row_sets_is_that_of_no_other_row(kind):
    read, change = CHANGES[kind]
    seen = []

    class Rows(list):
        def __getitem__(self, number):
            seen.append(read())
            change()
            return super().__getitem__(number)

    before = read()
    ReadableRows(Rows([1.0, 2.0, 3.0])).__getitems__([1, 2])
    assert seen == [before] * 3 and read() == before


def test_inference_that_a_row_ends_goes_on():
    with torch.inference_mode():
        modes = Modes()
        for _ in range(2):
            HELD.append(entered(torch.inference_mode(False)))
            assert not torch.is_inference_mode_enabled()
            modes.put_back()
            assert torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_modes_that_were_set_outside_stay(context):
    def modes():
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with context():
        before = modes()
        with kept_modes():
            assert modes() == before
        assert modes() == before
    assert modes() == (True, False)


def test_a_context_of_autocast_that_a_row_leaves_open_is_closed():
    layer, x = torch.nn.Linear(4, 4), torch.ones(1, 4)
    with kept_modes():
        HELD.append(entered(torch.autocast("cpu")))
    for value in (1.0, 2.0):  # an open context would keep the weights that were cast first
        with torch.no_grad():
            layer.weight.fill_(value)
        with torch.autocast("cpu"):
            assert torch.allclose((layer(x) - layer.bias).float(), torch.full((1, 4), 4 * value), atol=0.1)
