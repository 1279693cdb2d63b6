# SPDX-License-Identifier: Apache-2.0
"""Shakespeare by role: predict the next character. One speaking role of one play is one user.

Examples are windows of 80 characters, one after another, never across two roles. `user_ids` beside them tells
whose they are. Protecting a role means protecting all of its windows: user-level privacy.

The split is by role: about one in five roles is for testing, chosen by a hash of the names of the play and
the role. The side of a role depends on that role alone, and no role is on both sides.

The alphabet is printable ASCII and the newline, fixed here; any other character has one id of its own.

Edge cases Characters after the last whole window are dropped. A role too short for one window has no
           examples.
Source     The construction of LEAF's Shakespeare task (Caldas et al. 2018, arXiv:1812.01097), from another
           edition.
"""

import hashlib
import json
import lzma
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.datasets.dataset import Dataset, Examples
from sfumato.datasets.files import Content, read
from sfumato.datasets.places import Folder

__all__ = ["ALPHABET", "WINDOW", "Role", "encode_text", "shakespeare", "windows"]

WINDOW = 80  # characters; LEAF's choice
_UNKNOWN = "\ufffd"  # id 0
ALPHABET = _UNKNOWN + "\n" + "".join(chr(code) for code in range(32, 127))
_TEST_EVERY = 5
_IDS = {character: index for index, character in enumerate(ALPHABET)}

FILE = Content(
    path="text/shakespeare_by_role.jsonl.xz",
    sha256="62dc61d547be3bdc4696f8a5e7305fddd543ef4928e33e2250a1485a5013d683",
    note="This file was made from the plays role by role, and no public source of it is known.",
)


@dataclass(frozen=True, slots=True)
class Role:
    """One speaking role of one play, with everything it says."""

    play: str
    name: str
    text: str

    @property
    def is_for_test(self) -> bool:
        """Whether this role is held out."""
        digest = hashlib.sha256(f"{self.play}/{self.name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % _TEST_EVERY == 0


def shakespeare(*, folder: Folder = None) -> Dataset:
    """Load Shakespeare by role: windows of ids [N, 80], and the ids one character later."""
    roles = _roles(lzma.decompress(read(FILE, folder=folder)))
    return Dataset(
        name="shakespeare",
        train=_examples([role for role in roles if not role.is_for_test]),
        test=_examples([role for role in roles if role.is_for_test]),
        classes=tuple(ALPHABET),
        bounds=(0.0, float(len(ALPHABET) - 1)),
        source="W. Shakespeare, 37 plays in the Moby edition, one file line a role",
        license="public domain",
        privacy_unit="user",
    )


def _roles(data: bytes) -> list[Role]:
    records = [json.loads(line) for line in data.decode("utf-8").splitlines()]
    return [Role(r["play"], r["role"], "\n".join(r["speeches"])) for r in records]


def encode_text(text: str) -> Tensor:
    """Return the ids of a text's characters.

    >>> encode_text("To é")
    tensor([54, 81,  2,  0])
    """
    return torch.tensor([_IDS.get(character, 0) for character in text], dtype=torch.int64)


def windows(ids: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Cut a text into windows and, for each, what comes one character later.

    >>> windows(torch.arange(6), 2)
    (tensor([[0, 1], [2, 3]]), tensor([[1, 2], [3, 4]]))
    """
    count = max(len(ids) - 1, 0) // length
    now, later = ids[: count * length], ids[1 : count * length + 1]
    return now.view(count, length), later.view(count, length)


def _examples(roles: list[Role]) -> Examples:
    pairs = [windows(encode_text(role.text), WINDOW) for role in roles]
    pairs = [(now, later) for now, later in pairs if len(now)]
    user_ids = torch.cat([torch.full((len(now),), user) for user, (now, _) in enumerate(pairs)])
    return Examples(
        torch.cat([now for now, _ in pairs]), torch.cat([later for _, later in pairs]), user_ids=user_ids
    )
