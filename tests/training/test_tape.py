# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Size, nn

from sfumato.errors import UnsupportedUseError
from sfumato.training import tape
from sfumato.training.book_keeping import BookKeeping
from sfumato.training.tape import UNBATCHED, Batching, Layout, LayoutChangedError, Memory

sizes = st.lists(st.integers(1, 4), max_size=3)  # 2 and 3 among them: as many as the rows of the two passes


def layout_of(two, three, name="w"):
    return Layout([(name, Size(two))], [(name, Size(three))])


# --- layouts ------------------------------------------------------------------------------------------------


@given(before=sizes, after=sizes, rows=st.integers(1, 9))
def test_rows_are_found_on_any_axis_whatever_the_other_sizes(before, after, rows):
    layout = layout_of([*before, 2, *after], [*before, 3, *after])
    where = layout.at(0, "w", Size([*before, rows, *after]), rows)
    assert where == Batching(len(before)) and not layout.has_shared
    x = torch.randn(*before, rows, *after)
    assert where.rows_first(x, rows).shape[0] == rows


@given(steps=st.integers(2, 5), after=sizes, rows=st.integers(1, 9))
def test_rows_flattened_with_steps_are_found_example_after_example(steps, after, rows):
    where = layout_of([2 * steps, *after], [3 * steps, *after]).at(0, "w", Size([rows * steps, *after]), rows)
    x = torch.randn(rows, steps, *after)
    assert torch.equal(where.rows_first(x.flatten(0, 1), rows), x)


@given(shape=sizes, rows=st.integers(1, 9))
def test_what_all_rows_share_is_told_from_its_copies(shape, rows):
    layout = layout_of(shape, shape)
    assert layout.has_shared and layout.at(0, "w", Size([rows, *shape]), rows) == Batching(0)
    if len(shape) < 2 or shape[0] != 1:
        assert layout.at(0, "w", Size(shape), rows) is UNBATCHED
    elif rows > 1:
        assert layout.at(0, "w", Size(shape), rows) is UNBATCHED
        assert layout.at(0, "w", Size([rows, *shape[1:]]), rows) == Batching(0)


@pytest.mark.parametrize(
    ("two", "three"),
    [
        ([2, 2], [3, 3]),  # rows against rows
        ([1, 4], [3, 4]),  # one less than there are: differences between neighbors
        ([3, 4], [5, 4]),
        ([5, 4], [7, 4]),
        ([4], [2, 3]),
        ([3, 4], [3, 6]),  # flattened with an axis before it: not example after example
    ],
)
def test_shapes_without_one_row_an_example_are_refused_with_the_parameter(two, three):
    with pytest.raises(UnsupportedUseError, match=r"'w'.*mixes examples"):
        layout_of(two, three)


def test_another_order_for_another_number_of_rows_is_refused():
    with pytest.raises(UnsupportedUseError, match=r"another order.*functional"):
        Layout([("a", Size([2])), ("b", Size([2]))], [("b", Size([3])), ("a", Size([3]))])
    with pytest.raises(UnsupportedUseError, match=r"another order"):
        Layout([("a", Size([2]))], [("a", Size([3])), ("a", Size([3]))])


@pytest.mark.parametrize(
    ("place", "name", "shape"),
    [
        (0, "v", [4, 5]),
        (1, "w", [4, 5]),
        (0, "w", [5, 4]),
        (0, "w", [4]),
        (0, "w", [1, 4, 5]),
        (0, "w", [3, 5]),
    ],
)
def test_a_use_that_does_not_fit_what_was_measured_is_noticed(place, name, shape):
    layout = layout_of([2, 5], [3, 5])
    assert layout.at(0, "w", Size([4, 7]), 4) == Batching(0)  # other sizes may differ: batches are trimmed
    with pytest.raises(LayoutChangedError):
        layout.at(place, name, Size(shape), 4)


def test_something_shared_of_another_rank_is_noticed():
    with pytest.raises(LayoutChangedError):
        layout_of([5, 3], [5, 3]).at(0, "w", Size([1, 4, 5, 3]), 4)


# --- tracked parameters -------------------------------------------------------------------------------------


class Using(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 3))
        self.layer = nn.Linear(3, 3)
        self.use = use

    def forward(self, x):
        return self.use(self, x)


def total(model, x):
    return model(x).flatten(1).sum(1)


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: F.linear(x, m.w[:2]),
        lambda m, x: F.linear(x, m.w.t()),
        lambda m, x: F.linear(x, m.w.view(3, 3)),
        lambda m, x: F.linear(x, m.w.data),
        lambda m, x: F.linear(x, m.w.clone()),
        lambda m, x: F.linear(x, torch.cat([m.w, m.w])),
        lambda m, x: F.linear(x, m.w * 2),
        lambda m, x: x + m.w.sum(),
        lambda m, x: x @ m.layer(m.w),  # a parameter as the input of a layer
        lambda m, x: x @ (m.w @ torch.ones(3, 3)),
        lambda m, x: F.layer_norm(m.w, (3,)).sum() + x,
    ],
)
def test_a_use_without_a_rule_is_refused_by_the_name_of_the_parameter(use):
    with pytest.raises(UnsupportedUseError, match=r"'w'.*engine='functional'"):
        BookKeeping(Using(use), total).run((torch.randn(4, 3),))


def test_shapes_types_and_devices_may_be_asked_for():
    def use(m, x):
        assert m.w.shape == (3, 3) and m.w.dim() == 2 and m.w.numel() == 9 and len(m.w) == 3
        assert m.w.dtype is torch.float32 and m.w.device.type == "cpu" and m.w.is_floating_point()
        return F.linear(x, m.w)

    BookKeeping(Using(use), total).run((torch.randn(4, 3),))


def test_an_input_changed_in_place_afterwards_is_refused_by_name():
    def careless(m, x):
        h = x * 1
        y = F.linear(h, m.w)
        h.mul_(2)
        return y

    with pytest.raises(UnsupportedUseError, match=r"\['w'\] was changed in place"):
        BookKeeping(Using(careless), total).run((torch.randn(4, 3),))


@pytest.mark.parametrize("steps", [(), (2,)])
@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: (x @ m.w).add_(x).mul_(2),
        lambda m, x: F.linear(x, m.w).relu_(),
        lambda m, x: torch.cat([m.w.expand(len(x), 3, 3).mul(2).add_(1), x.reshape(len(x), -1, 3)], 1),
        lambda m, x: m.layer(x).squeeze(0).add_(1).reshape(x.shape),
    ],
)
def test_outputs_of_any_kind_may_be_changed_in_place(agrees, use, steps):
    agrees(
        Using(use).double(), lambda m, x: m(x).square().flatten(1).sum(1), torch.randn(4, *steps, 3).double()
    )


def test_an_output_changed_in_place_afterwards_is_handled_as_autograd_does(agrees):
    model = Using(lambda m, x: F.linear(x, m.w).mul_(x).view(-1, 3).add_(1).view(x.shape)).double()
    agrees(model, lambda m, x: model(x).square().flatten(1).sum(1), torch.randn(4, 2, 3).double())


# --- numbers ------------------------------------------------------------------------------------------------


@given(st.integers(0, 100), st.integers(0, 100))
def test_memory_is_given_while_it_lasts(limit, asked):
    memory = Memory(limit)
    assert memory.admits(asked) == (asked <= limit) == memory.take(asked)
    assert memory.left == limit - (asked if asked <= limit else 0)


@pytest.mark.parametrize("size", [1, 1000, tape._LONG + 1, 4_000_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_long_gradients_are_not_rounded_down(size, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, size, generator=generator).to(dtype)
    wanted = x.double().square().sum(1)
    assert torch.allclose(tape.squared_norm(x).double(), wanted, rtol=5e-5)


def test_norms_and_sums_of_no_units_are_empty_and_zero():
    x = torch.zeros(0, 3, 2)
    assert tape.squared_norm(x).shape == (0,)
    assert tape.weighted_sum(x, torch.zeros(0)).tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_sum_over_a_batch_is_not_rounded_to_a_coarse_type(dtype, autocast):
    x = torch.ones(
        3001, 1, dtype=dtype
    )  # bfloat16 has no number between 3001 and its neighbors 2992 and 3008
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = tape.weighted_sum(x, torch.ones(3001))
    assert float(found) == 3001 and found.dtype is tape.norm_dtype(x)
