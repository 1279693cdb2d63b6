# SPDX-License-Identifier: Apache-2.0
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sfumato._extras import how_to_install
from sfumato.cli.doctor import gpu
from sfumato.cli.doctor.findings import State


def driver(tmp_path, *models):
    for number, model in enumerate(models):
        (tmp_path / f"0000:0{number}").mkdir(parents=True)
        (tmp_path / f"0000:0{number}" / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 17\n")
    return tmp_path


def test_devices_are_those_that_the_driver_lists(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu.shutil, "which", lambda name: None)
    assert gpu.devices_of_driver(driver(tmp_path / "gpus", "NVIDIA H200", "NVIDIA L4")) == [
        "NVIDIA H200",
        "NVIDIA L4",
    ]
    assert gpu.devices_of_driver(tmp_path / "none") == []
    monkeypatch.setattr(gpu.shutil, "which", lambda name: f"/bin/{name}")
    assert gpu.devices_of_driver(tmp_path / "none") == ["an NVIDIA GPU"]


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("cuda: Optional[str] = None", None),
        ("cuda: Optional[str] = '12.8'", "12.8"),
        ('cuda = "13.0"', "13.0"),
        ("", None),
    ],
)
def test_the_build_of_torch_is_read_from_its_file(tmp_path, line, version):
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\ndebug = False\n{line}\n")
    assert gpu.cuda_of_torch(tmp_path) == version
    assert gpu.cuda_of_torch(tmp_path / "none") is None


def test_the_build_that_is_installed_is_read_as_torch_says_it():
    assert gpu.cuda_of_torch(Path(str(find_spec("torch").origin)).parent) == torch.version.cuda


@pytest.fixture
def machine(monkeypatch):
    """Let there be devices, a build of torch and what torch says."""

    def make(devices=(), build=None, seen=0, triton=True):
        asked = []
        monkeypatch.setattr(gpu, "devices_of_driver", lambda: list(devices))
        monkeypatch.setattr(gpu, "cuda_of_torch", lambda folder: build)

        def available():
            asked.append(True)
            return seen > 0

        about = SimpleNamespace(name="NVIDIA H200", total_memory=141 * 2**30)
        monkeypatch.setattr(torch.cuda, "is_available", available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: about)
        monkeypatch.setattr("sfumato.training.fast.kernels.installed", lambda: triton)
        monkeypatch.setattr("sfumato.mechanisms.device.available", lambda: triton)
        return asked

    return make


def test_without_a_device_torch_is_not_asked(machine):
    asked = machine()
    (found,) = gpu.check(ask_torch=None)
    assert found.state is State.ABSENT and "trained on the CPU" in found.found and asked == []


def test_a_device_beside_a_torch_for_the_cpu_is_a_warning(machine):
    asked = machine(devices=["NVIDIA L4"])
    (found,) = gpu.check(ask_torch=None)
    assert found.state is State.WARNING and "NVIDIA L4 is here" in found.found and asked == []


def test_a_device_that_torch_sees_is_shown_with_the_fast_paths(machine):
    machine(devices=["NVIDIA H200"], build="12.8", seen=2)
    first, second, paths = gpu.check(ask_torch=None)
    assert (first.name, second.name) == ("cuda:0", "cuda:1") and "NVIDIA H200, 141 GiB" in first.found
    assert paths.state is State.OK and "ChaCha20" in paths.found


def test_a_device_without_triton_is_slower(machine):
    machine(devices=["NVIDIA H200"], build="12.8", seen=1, triton=False)
    *_, paths = gpu.check(ask_torch=None)
    assert paths.state is State.WARNING and paths.advice == "Run: pip install triton"


def test_a_device_that_torch_does_not_see_is_a_warning(machine):
    machine(devices=["NVIDIA L4"], build="12.8", seen=0)
    (found,) = gpu.check(ask_torch=None)
    assert found.state is State.WARNING and "sees no GPU" in found.found and "nvidia-smi" in found.advice


def test_torch_is_asked_or_not_as_the_flag_says(machine):
    asked = machine()
    (found,) = gpu.check(ask_torch=True)
    assert asked and found.state is State.ABSENT
    asked = machine(devices=["NVIDIA L4"], build="12.8", seen=1)
    (found,) = gpu.check(ask_torch=False)
    assert asked == [] and found.state is State.OK and "NVIDIA L4; torch" in found.found


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    (found,) = gpu.check(ask_torch=True)
    assert found.state is State.ABSENT and found.advice == how_to_install("torch")
    assert "torch" in sys.modules  # only the question was answered differently
