# SPDX-License-Identifier: Apache-2.0
import torch

from sfumato.experiments.r5.memory import peak_bytes


def test_the_peak_counts_tensors_that_live_at_the_same_time():
    def together():
        return [torch.ones(10_000) for _ in range(3)]

    def one_by_one():
        for _ in range(3):
            torch.ones(10_000)

    assert 120_000 <= peak_bytes(together, "cpu") < 130_000
    assert 40_000 <= peak_bytes(one_by_one, "cpu") < 90_000
