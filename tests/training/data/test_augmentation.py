# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.training.data.augmentation import Augmenter

ROWS = torch.arange(24.0).reshape(12, 2), torch.arange(12)


def _mixup(batch, generator):
    x, y = batch
    return (x + x[torch.randperm(len(x), generator=generator)]) / 2, y


def _even_units(batch, generator):
    """Mixes the rows at even places among themselves: of other units, where it sees them."""
    x, y = batch
    x = x.clone()
    x[::2] = x[::2].flip(0)
    return x, y


def _noisy(batch, generator):
    x, y = batch
    return x + torch.randn(x.shape, generator=generator), y


def _flipped(batch, generator):
    x, y = batch
    turn = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(turn[:, None], x.flip(1), x), y


def _by_numpy(batch, generator):
    x, y = batch
    return torch.from_numpy(x.numpy() - x.numpy().mean(0)), y


def _by_item(batch, generator):
    x, y = batch
    return x.roll(int(torch.randint(0, 2, (), generator=generator)), 1) + float(x.mean()), y


EVERY = {
    "mixup": _mixup,
    "even units": _even_units,
    "centered": lambda batch, generator: (batch[0] - batch[0].mean(0), batch[1]),
    "noisy": _noisy,
    "flipped": _flipped,
    "numpy": _by_numpy,
    "item": _by_item,
}


@pytest.mark.parametrize("rows_per_unit", [1, 2, 4])
@pytest.mark.parametrize("name", EVERY)
def test_rows_of_a_unit_do_not_depend_on_those_of_others(name, rows_per_unit):
    """The same draws beside quite other rows give the same unit, bit for bit."""
    x, y = ROWS
    units = len(x) // rows_per_unit
    for unit in range(units):
        other = 1000 * torch.randn(x.shape, generator=torch.Generator().manual_seed(unit))
        own = slice(unit * rows_per_unit, (unit + 1) * rows_per_unit)
        other[own] = x[own]
        first, second = (
            Augmenter(EVERY[name])((given, y), rows_per_unit=rows_per_unit, seed=7)[0] for given in (x, other)
        )
        assert torch.equal(first[own], second[own])


def test_rows_of_one_unit_may_be_mixed():
    x, y = Augmenter(_mixup)(ROWS, rows_per_unit=12, seed=3)
    assert not torch.equal(x, ROWS[0]) and torch.allclose(x.sum(0), ROWS[0].sum(0))
    assert torch.equal(y, ROWS[1])


@pytest.mark.parametrize("name", ["noisy", "flipped", "item"])
def test_units_draw_for_themselves_and_the_same_for_the_same_seed(name):
    x = torch.arange(2.0).expand(64, 2)
    found = [Augmenter(EVERY[name])((x, x), rows_per_unit=1, seed=seed)[0] for seed in (1, 1, 2)]
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert len({tuple(row) for row in found[0].tolist()}) > 1


def test_what_leaves_torch_is_called_for_one_unit_after_another():
    sizes = []

    def watched(batch, generator):
        sizes.append(len(batch[0]))
        return _by_numpy(batch, generator)

    augment = Augmenter(watched)
    for _ in range(2):
        x, _ = augment(ROWS, rows_per_unit=3, seed=0)
    assert sizes == [3] + [3] * 4 + [3] * 4  # the first call is the attempt for all at once
    assert torch.equal(x[:3], ROWS[0][:3] - ROWS[0][:3].mean(0))


@pytest.mark.parametrize(
    "lost", [lambda b, g: (b[0][:1], b[1][:1]), lambda b, g: None, lambda b, g: b[0].sum()]
)
def test_an_augmentation_that_loses_rows_is_refused(lost):
    with pytest.raises(InvalidParameterError, match="as many"):
        Augmenter(lost)(ROWS, rows_per_unit=2, seed=0)


def test_what_it_says_of_a_row_is_not_repeated():
    def talkative(batch, generator):
        raise KeyError(f"row {batch[0]}")

    with pytest.raises(QueryFailedError, match=r"augment failed .*\(KeyError\)") as caught:
        Augmenter(talkative)(ROWS, rows_per_unit=1, seed=0)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
