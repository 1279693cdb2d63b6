# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.errors import InvalidParameterError
from sfumato.pate.students.image_changes import ImageChanges

NONE = ImageChanges(rotation=0, scale=0, shear=0, shift=0)
IMAGES = torch.rand(64, 2, 9, 9, generator=torch.Generator().manual_seed(1))


def changed(changes: ImageChanges, seed: int = 0) -> torch.Tensor:
    return changes(IMAGES, torch.Generator().manual_seed(seed))


def test_no_amount_changes_nothing():
    torch.testing.assert_close(changed(NONE), IMAGES)


def test_the_same_generator_gives_the_same_images_and_another_gives_others():
    assert changed(ImageChanges()).equal(changed(ImageChanges()))
    assert not changed(ImageChanges()).allclose(changed(ImageChanges(), seed=1))


def test_half_of_the_images_are_mirrored_left_to_right():
    found = changed(ImageChanges(rotation=0, scale=0, shear=0, shift=0, mirror=True))
    same = (found - IMAGES).abs().amax((1, 2, 3)) < 1e-5
    mirrored = (found - IMAGES.flip(3)).abs().amax((1, 2, 3)) < 1e-5
    assert bool((same ^ mirrored).all())
    assert 15 < int(mirrored.sum()) < 49


def test_a_shift_moves_an_image_by_at_most_its_share_of_the_side():
    points = torch.zeros(200, 1, 21, 21)
    points[:, :, 10, 10] = 1.0
    moved = ImageChanges(rotation=0, scale=0, shear=0, shift=0.1)(points, torch.Generator().manual_seed(0))
    places = moved.flatten(1).argmax(1)
    apart = torch.maximum((places // 21 - 10).abs(), (places % 21 - 10).abs())
    assert int(apart.max()) == 2  # 0.1 * 21 = 2.1 pixels


def test_a_quarter_turn_is_within_reach_of_a_large_rotation_only():
    line = torch.zeros(300, 1, 11, 11)
    line[:, :, 5, :] = 1.0

    def most_upright(rotation: float) -> float:
        changes = ImageChanges(rotation=rotation, scale=0, shear=0, shift=0)
        return float(changes(line, torch.Generator().manual_seed(0))[:, 0, :, 5].sum(1).max())

    assert most_upright(90) > 8 > 3 > most_upright(20)


def test_rows_of_a_table_are_refused_with_what_to_do():
    with pytest.raises(InvalidParameterError, match="pass augment=None"):
        ImageChanges()(torch.zeros(3, 4), torch.Generator())


@pytest.mark.parametrize("wrong", [{"rotation": -1}, {"scale": 1.0}, {"shift": 2}, {"shear": float("nan")}])
def test_amounts_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        ImageChanges(**wrong)
