# SPDX-License-Identifier: Apache-2.0
"""Generators of random bytes: secure, fast, or seeded.

The secure stream is counter mode as AES-256-GCM runs it (NIST SP 800-38D: blocks 2, 3, ... under a nonce of
96 bits), twice as fast as plain CTR on processors with wide AES instructions. The tag is never requested.
A seeded stream is plain CTR from block 0, the same on every version.

`generator=None` means `SecureGenerator`. Seeds (`sfumato.testing.seeded`) and `FastGenerator` must be
requested by name; `study_note` returns the note that a release made with them must carry.

A secret key gives at most 2^32 - 2 blocks of 16 bytes: the bound on distinguishing them from uniform bytes is
then 2^-65 (the PRP/PRF switching lemma, q^2 / 2^129).

`fork(label, index)` returns the generator of one step or one purpose. A seeded one derives its key by SHA-256
from the parent's key, the label and the index, so step 1000 of a run can be repeated without the 999 before
it. The fork of a secure generator is the generator itself, whose stream never repeats.

Guarantee  `SecureGenerator` is the AES-256-CTR keystream of a key taken from the operating system: without
           the key its bytes cannot be distinguished from uniform ones. Two generators, two threads and two
           processes never share a stream: a forked child takes a key of its own, and a generator cannot be
           pickled or copied. No generator of any kind gives a forked child the stream of its parent: one
           without a seed starts anew there, and one with a seed refuses to work.
"""

import hashlib
import numbers
import os
import threading
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from sfumato import _check
from sfumato._torch import require_torch
from sfumato.errors import InvalidParameterError

if TYPE_CHECKING:
    from torch import Generator as TorchGenerator
    from torch import device as TorchDevice

__all__ = [
    "FastGenerator",
    "Generator",
    "SecureGenerator",
    "SeededGenerator",
    "Words",
    "process_token",
    "refuse_copy",
    "resolve",
    "study_note",
    "uniform_below",
    "words",
]

Words = npt.NDArray[np.uint64]

_ZEROS: Final = memoryview(bytes(1 << 17))  # a keystream is the encryption of zeros; these stay in cache
_BYTES_PER_KEY: Final = 16 * (2**32 - 2)
_GCM_NONCE: Final = 12  # bytes: a start of this length means GCM, one of 16 plain CTR
_LITTLE: Final = np.dtype("<u8")  # a seeded stream is the same on every platform


class Generator(Protocol):
    """A source of random bytes: the type of every `generator` argument."""

    @property
    def secure(self) -> bool:
        """Whether the bytes are cryptographic and their key is secret."""
        ...

    @property
    def seeded(self) -> bool:
        """Whether someone who knows a seed can repeat the bytes."""
        ...

    def fill(self, out: memoryview) -> None:
        """Overwrite a buffer with random bytes.

        Args:
            out: The buffer.
        """
        ...

    def fork(self, label: str, index: int) -> "Generator":
        """Return the generator of one purpose and one step, however much of this one was used.

        Args:
            label: The purpose.
            index: The number of the step.

        Returns:
            The generator.
        """
        ...


def refuse_copy(self: Any, protocol: Any = None) -> NoReturn:
    """Replace `__reduce_ex__` in classes whose copies would draw the same noise again."""
    raise TypeError(
        f"a {type(self).__name__} cannot be pickled or copied: two holders would draw the same noise. "
        "Make a new one where it is needed."
    )


class _Keystream:
    """AES-256 in counter mode over zeros. Owned by one thread of one process."""

    def __init__(self, key: bytes, start: bytes) -> None:
        mode = modes.GCM(start) if len(start) == _GCM_NONCE else modes.CTR(start)
        self._cipher: CipherContext = Cipher(algorithms.AES(key), mode).encryptor()
        self.left = _BYTES_PER_KEY

    def fill(self, out: memoryview) -> None:
        for begin in range(0, len(out), len(_ZEROS)):
            part = out[begin : begin + len(_ZEROS)]
            self._cipher.update_into(_ZEROS[: len(part)], part)
        self.left -= len(out)


def _derived(key: bytes, label: str, index: int) -> bytes:
    """Return the key of a fork. The label comes last, so no two (key, label, index) are hashed alike."""
    _check.text(label=label)
    _check.in_range(0, 2**63 - 1, index=index)
    if not isinstance(index, numbers.Integral):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(f"index must be a whole number, but {index!r} was given.")
    place = int(index).to_bytes(8, "big")
    return hashlib.sha256(b"sfumato fork" + key + place + label.encode()).digest()


_forks = 0  # process ids are reused; a count of forks is not


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # absent on Windows, which cannot fork
    os.register_at_fork(after_in_child=_count_fork)


def process_token() -> tuple[int, int]:
    """Return a token that differs between this process, its parent, its children and later processes."""
    return os.getpid(), _forks


def _other_process() -> InvalidParameterError:
    return InvalidParameterError(
        "a seeded generator was used in another process than the one that made it, which would repeat its "
        "noise. Make one in each process, each with a seed of its own."
    )


class SecureGenerator:
    """A cryptographic stream with a secret key from the operating system; the default everywhere.

    A fork of the process is detected, a restored memory image is not: a snapshot of a virtual machine or a
    checkpoint of a process holds the key, and each time it is restored the stream continues from the same
    place. Noise drawn after two restorations of one image is the same noise, so restart the process instead,
    or release from one of them only.

    >>> SecureGenerator().secure, SecureGenerator().seeded
    (True, False)
    """

    secure = True
    seeded = False
    __reduce_ex__ = refuse_copy  # type: ignore[assignment]  # refuses, so its result type does not matter

    def __init__(self) -> None:
        # One stream for each thread needs no lock, and so no lock can be held across a fork.
        self._local = threading.local()

    def fill(self, out: memoryview) -> None:
        """Overwrite a buffer with random bytes.

        Args:
            out: The buffer.
        """
        while len(out):
            stream = self._stream()
            part = out[: stream.left]
            stream.fill(part)
            out = out[len(part) :]

    def fork(self, label: str, index: int) -> "SecureGenerator":
        """Return this generator: its stream never repeats, so it serves every purpose.

        Args:
            label: The purpose; not used.
            index: The number of the step; not used.

        Returns:
            This generator.
        """
        return self

    def _stream(self) -> _Keystream:
        stream: _Keystream | None = getattr(self._local, "stream", None)
        if stream is None or stream.left <= 0 or self._local.process != process_token():
            stream = _Keystream(os.urandom(32), os.urandom(_GCM_NONCE))
            self._local.stream, self._local.process = stream, process_token()
        return stream


class SeededGenerator:
    """The same stream from a public seed: repeatable, hence for study and tests only.

    It can be used only in the process that made it. In another process, make one with a seed of its own.

    Args:
        seed: The seed, a whole number.
    """

    secure = False
    seeded = True
    __reduce_ex__ = refuse_copy  # type: ignore[assignment]  # refuses, so its result type does not matter

    def __init__(self, seed: int) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError(f"seed must be a whole number, 0 or more, but {seed!r} was given.")
        self._start(hashlib.sha256(f"sfumato study seed {seed}".encode()).digest())

    def _start(self, key: bytes) -> None:
        self._key, self._stream = key, _Keystream(key, bytes(16))
        self._lock = threading.Lock()
        self._process = process_token()

    def fill(self, out: memoryview) -> None:
        """Overwrite a buffer with the next bytes of the stream.

        Args:
            out: The buffer.
        """
        self._refuse_other_process()
        with self._lock:
            self._stream.fill(out)

    def fork(self, label: str, index: int) -> "SeededGenerator":
        """Return the generator of one purpose and one step: the same for the same seed, label and index.

        Args:
            label: The purpose.
            index: The number of the step.

        Returns:
            The generator.

        >>> step = SeededGenerator(7).fork("noise", 3)
        >>> int(words(1, step)[0]) == int(words(1, SeededGenerator(7).fork("noise", 3))[0])
        True
        """
        self._refuse_other_process()
        child = SeededGenerator.__new__(SeededGenerator)
        child._start(_derived(self._key, label, index))
        return child

    def _refuse_other_process(self) -> None:
        if self._process != process_token():
            raise _other_process()


class FastGenerator:
    """Torch's own generator: fast on every device, NOT secure, and for study only.

    Its state can be computed from its outputs, so everyone who sees a release may remove the noise. In a
    forked process a generator without a seed starts anew, and one with a seed can be used only in the process
    that made it.

    Args:
        seed: The seed. None takes one from the operating system.
        device: The device that numbers are drawn on.

    Raises:
        InvalidParameterError: If the seed is not a number from 0 to 2^63 - 1.

    >>> FastGenerator(7).secure, FastGenerator(7).seeded, FastGenerator().seeded
    (False, True, False)
    """

    secure = False
    __reduce_ex__ = refuse_copy  # type: ignore[assignment]  # refuses, so its result type does not matter

    def __init__(self, seed: int | None = None, *, device: "str | TorchDevice" = "cpu") -> None:
        require_torch()
        import torch

        if seed is not None:
            _check.in_range(0, 2**63 - 1, seed=seed)
        self.seeded = seed is not None
        self._seed = None if seed is None else int(seed)
        self._device = torch.device(device)
        self._start()

    def _start(self) -> None:
        import torch

        self._torch = torch.Generator(self._device)
        self._torch.manual_seed(int.from_bytes(os.urandom(7), "little") if self._seed is None else self._seed)
        self._process = process_token()

    @property
    def torch(self) -> "TorchGenerator":
        """Torch's generator, of this process."""
        if self._process != process_token():
            if self._seed is not None:
                raise _other_process()
            self._start()
        return self._torch

    def fill(self, out: memoryview) -> None:
        """Overwrite a buffer with random bytes.

        Args:
            out: The buffer.
        """
        import torch

        values = torch.empty(-(-len(out) // 8), dtype=torch.int64, device=self._device)
        values.random_(-(2**63), None, generator=self.torch)
        out[:] = values.cpu().numpy().data.cast("B")[: len(out)]

    def fork(self, label: str, index: int) -> "FastGenerator":
        """Return a generator on the same device: with a seed derived from this one's, or a fresh one.

        Args:
            label: The purpose.
            index: The number of the step.

        Returns:
            The generator.

        Raises:
            InvalidParameterError: If a seeded generator is used in another process than its own.
        """
        if self._seed is None:
            return FastGenerator(device=self._device)
        if self._process != process_token():
            raise _other_process()
        key = _derived(self._seed.to_bytes(32, "big"), label, index)
        return FastGenerator(int.from_bytes(key[:7], "big"), device=self._device)


_default: Final = SecureGenerator()


def resolve(generator: Generator | None) -> Generator:
    """Return the generator to use: the given one, or the secure one of this process."""
    if generator is None:
        return _default
    if not callable(getattr(generator, "fill", None)):
        raise InvalidParameterError(
            f"generator must be None or a sfumato generator, but a {type(generator).__name__} was given. "
            "Leave it out for secure noise, or use sfumato.testing.seeded(n) or FastGenerator() for study."
        )
    return generator


def study_note(generator: Generator | None) -> str | None:
    """Return the note that a release made with a generator must carry, or None if the generator is secure.

    Args:
        generator: The generator, or None for the secure one.

    Returns:
        The note, or None.

    >>> study_note(SeededGenerator(1))
    'for study only: the noise was seeded'
    """
    generator = resolve(generator)
    if generator.seeded:
        return "for study only: the noise was seeded"
    return None if generator.secure is True else "for study only: the noise was not cryptographic"


def words(count: int, generator: Generator | None = None) -> Words:
    """Return `count` uniform 64-bit words."""
    out = np.empty(count, dtype=_LITTLE)
    if count:
        resolve(generator).fill(out.data.cast("B"))
    return out.astype(np.uint64, copy=False)  # a copy on big-endian machines only


def uniform_below(bound: int, count: int, generator: Generator | None = None) -> npt.NDArray[np.int64]:
    """Return `count` whole numbers, each of 0 ... bound - 1 with exactly the same probability.

    >>> uniform_below(1, 3).tolist()
    [0, 0, 0]
    """
    _check.count(bound=bound)
    _check.in_range(1, 2**63, bound=bound)
    # Words past the last whole multiple of `bound` are thrown away: with them, low values would be likelier.
    last = np.uint64(2**64 - 2**64 % bound - 1)
    drawn = words(count, generator)
    while (bad := np.flatnonzero(drawn > last)).size:
        drawn[bad] = words(bad.size, generator)
    return (drawn % np.uint64(bound)).astype(np.int64)
