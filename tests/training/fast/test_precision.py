# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from sfumato.training.fast.precision import convolution_eps, uses_tf32, whole_floats

PLACES = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def as_it_was():
    before = [place.fp32_precision for place in PLACES]
    yield
    for place, value in zip(PLACES, before, strict=True):
        place.fp32_precision = value


@pytest.mark.parametrize("stated", ["ieee", "tf32"])
def test_floats_are_whole_inside_and_as_they_were_after(stated):
    for place in PLACES:
        place.fp32_precision = stated
    with pytest.raises(ZeroDivisionError), whole_floats(GPU):
        assert [place.fp32_precision for place in PLACES] == ["ieee"] * 3 and not uses_tf32()
        _ = 1 / 0
    assert [place.fp32_precision for place in PLACES] == [stated] * 3
    assert uses_tf32() is (stated == "tf32")


def test_torchs_older_switch_is_understood_and_left_readable():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with whole_floats(GPU):
            assert not uses_tf32()
        assert uses_tf32() and torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_elsewhere_nothing_is_touched():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with whole_floats(torch.device("cpu")):
        assert uses_tf32()


class OnAGpu:
    """What is asked of a tensor that lies on a GPU."""

    def __init__(self, dtype):
        self.is_cuda, self.dtype = True, dtype


def test_convolutions_have_a_setting_of_their_own_which_cuts_numbers_unless_it_is_changed():
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    assert convolution_eps(OnAGpu(torch.float32)) > 0
    assert convolution_eps(torch.zeros(1)) == convolution_eps(OnAGpu(torch.float64)) == 0
    with whole_floats(GPU):
        assert convolution_eps(OnAGpu(torch.float32)) == 0
