# SPDX-License-Identifier: Apache-2.0
"""Models that people use: their clipped sums are those of a plain loop, or they are refused."""

import functools
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

NAME = "training_hugging_face"
SPEC = importlib.util.spec_from_file_location(NAME, Path(__file__).parent / "hugging_face.py")
models = sys.modules[NAME] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(models)

EXACT, FAST = 27, 24  # architectures, of 28
measured = functools.cache(models.measure)


def test_there_are_28_architectures():
    assert len(models.BUILDERS) == 28


@pytest.mark.parametrize("name", models.BUILDERS)
def test_a_clipped_sum_is_that_of_the_loop_or_is_refused(name):
    found = measured(name)
    assert found.exact or found.error is None, f"apart by {found.error:.1e} with {found.engine}"
    assert 0 < found.clipped < models.ROWS  # else clipping would not be tested


def test_nearly_all_architectures_are_exact():
    refused = {name: measured(name).notes for name in models.BUILDERS if not measured(name).exact}
    assert len(models.BUILDERS) - len(refused) >= EXACT, refused


def test_most_architectures_are_fast():
    slow = {name: measured(name).notes for name in models.BUILDERS if not measured(name).fast}
    assert len(models.BUILDERS) - len(slow) >= FAST, slow


# --- the comparison sees what is wrong ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def sums():
    """Each row's gradient in GPT-2, a clip norm, and their clipped sum."""
    each = models.loop(models.build("GPT-2"))
    norms = [models.norm(row) for row in each]
    clip_norm = sorted(norms)[2] * 1.001
    return each, clip_norm, added(each, [min(1.0, clip_norm / norm) for norm in norms])


def added(each, factors):
    return {name: sum(row[name] * f for row, f in zip(each, factors, strict=True)) for name in each[0]}


def test_the_right_sum_is_exact(sums):
    each, clip_norm, right = sums
    assert models.apart(right, each, clip_norm) < models.TOLERANCE


@pytest.mark.parametrize(
    "wrong",
    [
        lambda each, right: added(each, [1.0] * len(each)),  # not clipped
        lambda each, right: {n: g - 0.01 * each[0][n] for n, g in right.items()},  # 1% of a row is missing
        lambda each, right: {n: g * (1 + 1e-4) for n, g in right.items()},
        lambda each, right: right | {"transformer.wpe.weight": right["transformer.wpe.weight"] * 0.99},
        lambda each, right: right | {"transformer.h.0.ln_1.bias": right["transformer.h.0.ln_1.bias"].flip(0)},
    ],
    ids=["not clipped", "a part of a row", "all a little", "one parameter", "one small parameter"],
)
def test_a_wrong_sum_is_not_exact(sums, wrong):
    each, clip_norm, right = sums
    assert models.apart(wrong(each, right), each, clip_norm) > 3 * models.TOLERANCE


def test_a_parameter_whose_gradient_is_only_rounding_is_no_error(sums):
    """Attention does not depend on the bias of its keys."""
    each, clip_norm, right = sums
    name = "transformer.h.0.attn.c_attn.bias"
    keys = slice(models.WIDTH, 2 * models.WIDTH)
    assert sum(row[name][keys].norm() for row in each) < 1e-6 * sum(models.norm(row) for row in each)
    other = right[name].clone()
    other[keys] *= -1
    assert not torch.equal(other, right[name])
    assert models.apart(right | {name: other}, each, clip_norm) < models.TOLERANCE
