# SPDX-License-Identifier: Apache-2.0
import json

from sfumato.experiments import Scale
from sfumato.experiments.r4.image_worth import measured_images

QUICK = Scale(quick=True, device="cpu")


def test_images_with_classes_have_an_accuracy_and_the_first_seed_a_grid():
    found = measured_images({"generator": "pate-10", "seed": 11}, QUICK)
    assert 0 <= found["accuracy"] <= 1
    assert len(found["pictures"]) == 4 * 8
    assert found["distance"] > found["floor"]
    json.dumps(found)


def test_images_without_classes_have_none_and_other_seeds_keep_no_grid():
    found = measured_images({"generator": "dp-gan-r4", "seed": 12}, QUICK)
    assert found["accuracy"] is None and found["pictures"] is None
    assert found["epsilon"] <= 9.6
