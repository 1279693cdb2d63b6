# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.accounting import Relation
from sfumato.datasets import load
from sfumato.experiments import Scale
from sfumato.experiments.r1 import reported


def test_the_noise_follows_from_the_reports_formula_with_a_decimal_logarithm():
    for claimed, noise in reported.NOISE.items():
        wanted = reported.SAMPLING_RATE * (reported.STEPS * 5) ** 0.5 / claimed  # log10(1 / delta) is 5
        assert noise == pytest.approx(wanted, rel=0.02)


def test_the_first_row_of_table_2_costs_what_the_errata_state():
    add = reported.price_of_poisson_batches(7.0, 1000, rate=0.01, relation=Relation.ADD_REMOVE)
    label = reported.price_of_poisson_batches(7.0, 1000, rate=0.01, relation=Relation.REPLACE_LABEL)
    assert add == pytest.approx(0.1452, abs=1e-4) and label == pytest.approx(0.3051, abs=1e-4)


def test_clipping_a_mean_costs_far_more_than_clipping_each_row():
    rows = {"rows": 54_000, "batch": 512}
    code = reported.price_of_code(7.0, 1000, **rows)
    assert code > 1e6 > reported.price_of_fixed_batches(7.0, 1000, **rows, relation=Relation.REPLACE_ONE)


def test_the_network_depends_on_its_seed_alone():
    first, second = (reported.reported_network((1, 8, 8), 10, seed=3) for _ in range(2))
    assert torch.equal(first[0].weight, second[0].weight)
    assert sum(p.numel() for p in reported.reported_network((784,), 10, seed=0).parameters()) == 101_770


def test_pixels_are_from_zero_to_one():
    digits = load("digits")
    found = reported.pixels(digits, digits.train.features)
    assert found.shape == (1437, 64) and found.min() >= 0 and found.max() <= 1


def test_a_quick_run_needs_no_files():
    assert reported.data_of(Scale(quick=True)).name == "digits"
    assert reported.device_of(Scale(device="cpu")) == "cpu"
