# SPDX-License-Identifier: Apache-2.0
"""Which GPU is here, whether torch sees it, and which faster paths it gives.

Importing torch takes seconds, so files are looked at first: what the driver says of its devices, and which
build of torch is installed. torch is imported only where both are there, or if it is asked for.
"""

import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from sfumato._extras import how_to_install
from sfumato.cli.doctor.findings import Finding, State
from sfumato.cli.show import waiting

__all__ = ["check", "cuda_of_torch", "devices_of_driver"]

AREA = "GPU"
_DRIVER = Path("/proc/driver/nvidia/gpus")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_BUILD = re.compile(r"^cuda\s*(?::[^=]*)?=\s*(?:'([^']*)'|\"([^\"]*)\"|None)", re.MULTILINE)


def check(*, ask_torch: bool | None) -> Iterator[Finding]:
    """Yield what is found about a GPU.

    Args:
        ask_torch: Whether to import torch and ask it. None asks it where a device and a build for it are.
    """
    package = find_spec("torch")  # found, not run
    devices = devices_of_driver()
    if package is None or package.origin is None:
        yield _finding("torch", State.ABSENT, "not installed: networks need it", how_to_install("torch"))
        return
    build = cuda_of_torch(Path(package.origin).parent)
    if ask_torch or (ask_torch is None and devices and build is not None):
        with waiting("Asking torch"):
            yield from _asked()
        return
    if devices and build is None:
        found = f"{', '.join(devices)} is here, but torch was built for the CPU"
        yield _finding("device", State.WARNING, found, "Install a build of torch for CUDA: see pytorch.org.")
        return
    if devices:
        yield _finding(
            "device", State.OK, f"{', '.join(devices)}; torch, built for CUDA {build}, was not asked"
        )
        return
    yield _finding("device", State.ABSENT, "no NVIDIA GPU was found: networks are trained on the CPU")


def devices_of_driver(folder: Path = _DRIVER) -> list[str]:
    """Return the models of NVIDIA devices as the driver lists them, or one without a name.

    Args:
        folder: Where the driver lists them.

    Returns:
        Names.
    """
    try:
        texts = [(each / "information").read_text() for each in sorted(folder.iterdir())]
    except OSError:
        texts = []
    names = [found[1] for text in texts if (found := _MODEL.search(text))]
    return names or (["an NVIDIA GPU"] if shutil.which("nvidia-smi") is not None else [])


def cuda_of_torch(folder: Path) -> str | None:
    """Return the version of CUDA that an installed torch was built for, or None for the CPU.

    Args:
        folder: The folder of the package.

    Returns:
        The version.
    """
    try:
        found = _BUILD.search((folder / "version.py").read_text(encoding="utf-8"))
    except OSError:
        return None
    return None if found is None else found[1] or found[2]


def _finding(name: str, state: State, found: str, advice: str | None = None) -> Finding:
    return Finding(area=AREA, name=name, state=state, found=found, advice=advice)


def _asked() -> Iterator[Finding]:
    """Yield what torch says of its devices."""
    import torch

    if not torch.cuda.is_available():
        found = f"torch {torch.__version__} sees no GPU: networks are trained on the CPU"
        hidden = devices_of_driver()
        advice = "Look at the driver (nvidia-smi) and at CUDA_VISIBLE_DEVICES." if hidden else None
        yield _finding("device", State.WARNING if hidden else State.ABSENT, found, advice)
        return
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        memory = f"{about.total_memory / 2**30:.0f} GiB"
        yield _finding(
            f"cuda:{number}", State.OK, f"{about.name}, {memory}, seen by torch {torch.__version__}"
        )
    yield _fast_paths()


def _fast_paths() -> Finding:
    """Return whether the kernels of sfumato can be used, which need Triton."""
    from sfumato.mechanisms import device
    from sfumato.training.fast.kernels import installed

    if device.available() and installed():
        found = "Triton is here: norms by fused kernels, noise drawn on the GPU by ChaCha20"
        return _finding("fast paths", State.OK, found)
    found = "without Triton norms are computed by torch, and noise is drawn on the CPU and copied"
    return _finding("fast paths", State.WARNING, found, "Run: pip install triton")
