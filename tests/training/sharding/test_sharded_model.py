# SPDX-License-Identifier: Apache-2.0
"""Training with parameters that `fully_shard` has cut, in real processes, against one process."""

import importlib.util
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

SCRIPT = Path(__file__).parent / "shards.py"
SPEC = importlib.util.spec_from_file_location("shards_alone", SCRIPT)
shards = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(shards)

ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1e-2}
EQUAL = [
    {"dtype": "float64"},
    {"per_layer": True, "lora": True, "check": False},
    {"dtype": "bfloat16", "noise": 0.01, "check": False},
    {"poison": True, "adaptive": True, "check": False},
]
MORE = [
    {"dtype": "bfloat16", "noise": 0.01},
    {"per_layer": True},
    {"lora": True},
    {"adaptive": True, "microbatch_size": 5},
    {"autocast": True},
]
NOISE = {"do": "noise", "steps": 300}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ran(run_ranks, ranks, several, folder):
    """Return what each rank found for each of several tasks: [task][rank]."""
    assert run_ranks(ranks, SCRIPT, json.dumps(several), str(folder)) == [0] * ranks
    return [
        [torch.load(folder / f"{number}-{rank}.pt", weights_only=True) for rank in range(ranks)]
        for number in range(len(several))
    ]


def same_as_alone(found, several):
    for asked, (first, *_) in zip(several, found, strict=True):
        alone = shards.attempt(asked)
        assert alone.keys() == first.keys() and "error" not in alone
        for name, wanted in alone.items():
            wide = (first[name] - wanted).double().norm(), wanted.double().norm()
            assert wide[0] <= TOLERANCE[asked.get("dtype", "float32")] * wide[1], (asked, name)


def correlation(first, second):
    return float(np.corrcoef(first.flatten().numpy(), second.flatten().numpy())[0, 1])


def test_two_ranks_with_a_part_of_the_model_each_do_what_one_process_does(tmp_path, run_ranks):
    rest = [
        {**NOISE, "width": 7},
        {**NOISE, "width": 8, "repeated": True},
        {**NOISE, "width": 8, "repeated": True, "unguarded": True},
        {"do": "whole", "blocks": 5},
        {"do": "refused"},
        {"do": "failing"},
    ]
    found = ran(run_ranks, 2, [*EQUAL, *rest], tmp_path)
    same_as_alone(found[: len(EQUAL)], EQUAL)
    own, repeated, unguarded, memory, refused, failing = found[len(EQUAL) :]
    one_noise_for_all_shards([rank["drawn"] for rank in own], numbers=9 * 7 + 7 + 7 * 24 + 24)
    assert [rank["error"] for rank in repeated] == ["InvalidParameterError", "OtherRankError"]
    drawn = [rank["drawn"] for rank in unguarded]
    with pytest.raises(AssertionError):  # the test has power: shards with one stream are seen
        one_noise_for_all_shards(drawn, numbers=9 * 8 + 8 + 8 * 24 + 24)
    for rank in memory:  # of six units; padding, and one number that has no rule, take a little more
        assert max(rank["units"]) <= rank["most"] <= 2.2 * max(rank["units"])
    for name, (words, message) in REFUSED.items():
        assert words in refused[0][name] and message in refused[0][name], (name, refused[0][name])
    assert failing[0]["error"] == "OtherRankError" and "rank 1 failed" in failing[0]["message"]
    assert failing[1]["error"] == "InvalidParameterError"


REFUSED = {
    "two axes": ("UnsupportedModelError", "a mesh of 2 axes"),
    "second axis": ("UnsupportedModelError", "leave shard_placement_fn out"),
    "tensor parallel": ("UnsupportedModelError", "something else than fully_shard"),
    "mixed precision": ("UnsupportedModelError", "Runtime(autocast=torch.bfloat16)"),
    "part": ("UnsupportedModelError", "not sharded, though others"),
    "functional": ("InvalidParameterError", "engine='functional'"),
    "compile": ("InvalidParameterError", "compile"),
    "coordinates": ("InvalidParameterError", "CoordinateClipping"),
    "projections": ("InvalidParameterError", "projections"),
    "denoiser": ("InvalidParameterError", "denoiser needs all parameters"),
    "audit": ("InvalidParameterError", "audit needs all parameters"),
    "contributor": ("InvalidParameterError", "gives whole contributions"),
    "in place": ("NotPrivateError", "changed in place"),
    "values": ("UnsupportedUseError", "book-keeping engine alone"),
}


def one_noise_for_all_shards(drawn, *, numbers):
    """Fail unless each coordinate has noise of the stated size that no other one has."""
    assert sum(part.shape[1] for part in drawn) == numbers  # padding is neither lost nor added
    together = torch.cat(drawn, 1)
    assert kstest(together.flatten().numpy(), norm(scale=shards.STDDEV).cdf).pvalue > ALPHA
    assert kstest(together.flatten().numpy(), norm(scale=1.1 * shards.STDDEV).cdf).pvalue < ALPHA
    least = min(part.shape[1] for part in drawn)
    limit = norm.isf(ALPHA / 2) / np.sqrt(least * len(together))
    for place, part in enumerate(drawn):
        for other in drawn[:place]:
            assert abs(correlation(part[:, :least], other[:, :least])) < limit
    assert abs(correlation(together[1:], together[:-1])) < limit  # nor do steps share noise


def test_a_rank_that_is_killed_in_a_step_ends_the_others_with_an_error(tmp_path, run_ranks):
    asked = json.dumps([{"do": "failing", "kill": True}])
    assert run_ranks(2, SCRIPT, asked, str(tmp_path)) == [0, -signal.SIGKILL]
    found = torch.load(tmp_path / "0-0.pt", weights_only=True)
    assert found["error"] == "OtherRankError" and "has died" in found["message"]


@pytest.mark.slow
def test_four_ranks_of_which_some_hold_no_row_do_what_one_process_does(tmp_path, run_ranks):
    several = [*EQUAL, *MORE]
    found = ran(run_ranks, 4, [*several, {**NOISE, "width": 7}, {"do": "failing"}], tmp_path)
    same_as_alone(found[: len(several)], several)
    one_noise_for_all_shards([rank["drawn"] for rank in found[-2]], numbers=9 * 7 + 7 + 7 * 24 + 24)
    assert [rank["error"] for rank in found[-1]].count("OtherRankError") == 3
