# SPDX-License-Identifier: Apache-2.0
"""A released generator of images. What it draws is computed from what was released, so it costs nothing.

Guarantee  A generator holds weights and public settings alone, never a private image. All of its samples
           together satisfy `guarantee`, as many as are drawn.
Edge cases Classes are drawn uniformly unless `labels` are given: how often each class occurs is private. A
           method that bought noisy counts of the classes may draw by them.
"""

import importlib
import io
import json
import os
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _check, _files
from sfumato._seal import SEAL, fits, sealed
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.report import notebook
from sfumato.report.cards import words
from sfumato.report.cards.card import PrivacyCard
from sfumato.training.record.fingerprints import fingerprint_of

__all__ = ["GENERATOR", "ImageGenerator", "Sampler"]

GENERATOR = "generator.json"  # the file that a folder with a generator has
_WEIGHTS = "generator.pt"
_FINGERPRINT = "weights"
_AT_ONCE = 4096  # images that are drawn together


class Sampler(Protocol):
    """What draws images: a torch module that can be made again from its settings and its weights.

    Attributes:
        settings: The arguments it is made from, as plain values.
    """

    settings: dict[str, Any]

    def sample(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return one image in [0, 1] for each class number.

        Args:
            labels: The class numbers.
            generator: Where it draws from, on the device of `labels`.

        Returns:
            [rows, channels, height, width].
        """
        ...


_HOMES: Final = {  # the samplers that `ImageGenerator.load` makes again, and where they are
    "DiffusionSampler": "sfumato.generative.images.diffusion",
    "MixtureSampler": "sfumato.generative.images.mixtures",
    "NetworkSampler": "sfumato.generative.adversarial.networks",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageGenerator:
    """A generator of images with its guarantee.

    Attributes:
        sampler: What draws images.
        method: How it learned, in a word.
        classes: The number of classes; 1 if images have none.
        guarantee: The guarantee of everything that it draws.
        description: What was done to private images, in sentences.
        account: The name of the account that was charged, if there is one.
        record_note: What must be said of a release that no ledger keeps.
        study_note: Why the noise protects nobody, if it was seeded.
        findings: What is wrong with its images, such as a collapse, in sentences.
    """

    sampler: Any = field(repr=False)
    method: str
    classes: int
    guarantee: Guarantee
    description: str
    account: str | None = None
    record_note: str | None = None
    study_note: str | None = None
    findings: tuple[str, ...] = ()

    @property
    def epsilon(self) -> float:
        """The epsilon of the guarantee."""
        return self.guarantee.epsilon

    def sample(
        self,
        count: int | None = None,
        *,
        labels: npt.ArrayLike | Tensor | None = None,
        seed: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw images; as many as you like, at no cost.

        Args:
            count: How many. Default: one for each of `labels`.
            labels: The class number of each image. Default: all classes in turn.
            seed: The seed of the draws. Default: other images each time.

        Returns:
            Images [count, channels, height, width] in [0, 1], and their class numbers.

        Raises:
            InvalidParameterError: If neither is given, they disagree, or a label is no class.
        """
        wanted = self._labels(count, labels)
        device = next((t.device for t in self.sampler.state_dict().values()), torch.device("cpu"))
        generator = torch.Generator(device)
        generator.manual_seed(seed) if seed is not None else generator.seed()
        with torch.no_grad():
            parts = [self.sampler.sample(part, generator) for part in wanted.to(device).split(_AT_ONCE)]
        return torch.cat(parts).float().clamp(0, 1).cpu(), wanted

    def _labels(self, count: int | None, labels: Any) -> Tensor:
        if labels is None:
            if count is None:
                raise InvalidParameterError("pass count, the number of images, or labels=...")
            _check.count(count=count)
            return torch.arange(count) % self.classes
        known = torch.as_tensor(labels).cpu()
        whole = known.dim() == 1 and len(known) > 0 and not (known.is_floating_point() or known.is_complex())
        if not whole or bool(((known < 0) | (known >= self.classes)).any()):
            raise InvalidParameterError(
                f"labels must be a list of class numbers from 0 to {self.classes - 1}, and not empty."
            )
        if count is not None and count != len(known):
            raise InvalidParameterError(f"count={count}, but there are {len(known)} labels: leave one out.")
        return known.to(torch.int64)

    def statement(self) -> str:
        """Return a paragraph for people who must judge the claim.

        Returns:
            What was done, and the guarantee.
        """
        notes = [f"{note[0].upper()}{note[1:]}." for note in (self.record_note, self.study_note) if note]
        charged = [] if self.account is None else [f"It was charged to account {self.account!r}."]
        return " ".join(
            (
                self.description,
                *self._labels_note(),
                f"The generator, and everything that it draws, satisfies {self.guarantee}.",
                "Tuning is not charged.",
                *charged,
                *notes,
                *self.findings,
            )
        )

    def _labels_note(self) -> tuple[str, ...]:
        """What became of other labels, a public fact: that there were some would be a private one."""
        if self.classes == 1:
            return ()
        return (
            f"Images count whose label says a class number, a whole number from 0 to {self.classes - 1}, in "
            "any type; others were left out.",
        )

    def card(self, *, title: str | None = None) -> PrivacyCard:
        """Return the privacy card of the generator, for those who draw from it.

        Args:
            title: The title of the card. Default: the method.

        Returns:
            The card.
        """
        return PrivacyCard(
            title=f"A generator of images by {self.method}" if title is None else title,
            released=words.GENERATOR,
            covers="this generator alone",
            guarantee=self.guarantee,
            mechanism=(self.description, *self._labels_note()),
            numerics=(words.noise_source(self.study_note), words.FLOAT_TENSORS, words.COST_IN_FLOATS),
            study_note=self.study_note,
            account=self.account,
            record_note=self.record_note,
            facts={
                "method": self.method,
                "classes": self.classes,
                **{f"finding {place}": finding for place, finding in enumerate(self.findings, start=1)},
            },
            statement=self.statement(),
            weights_sha256=fingerprint_of(self.sampler.state_dict()),
            code_version=words.code_version(),
        )

    def _repr_html_(self) -> str:
        return notebook.RunView(
            title=f"A generator of images: {self.method}",
            guarantee=self.guarantee,
            statement=self.statement(),
            facts={"classes": self.classes, "account": self.account},
            study_note=self.study_note,
        ).html()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the generator and its statement into a folder.

        Args:
            folder: The folder. It is made if needed.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        weights = {name: tensor.cpu() for name, tensor in self.sampler.state_dict().items()}
        _files.write_whole(place / _WEIGHTS, lambda file: torch.save(weights, cast(io.BytesIO, file)))
        facts = sealed(self.to_dict() | {_FINGERPRINT: fingerprint_of(weights)})
        _files.write_whole(place / GENERATOR, json.dumps(facts, indent=2).encode())

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the weights as plain values.

        Returns:
            The values, by name.
        """
        return {
            "kind": type(self.sampler).__name__,
            "settings": self.sampler.settings,
            "method": self.method,
            "classes": self.classes,
            "guarantee": self.guarantee.to_dict(),
            "description": self.description,
            "account": self.account,
            "record_note": self.record_note,
            "study_note": self.study_note,
            "findings": list(self.findings),
            "statement": self.statement(),
            "code_version": version("sfumato"),
        }

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "ImageGenerator":
        """Return the generator that was saved in a folder.

        Args:
            folder: The folder.

        Returns:
            The generator.

        Raises:
            InvalidParameterError: If the folder holds no generator of this version, or one that was changed.
        """
        place = Path(folder)
        try:
            facts = json.loads((place / GENERATOR).read_text())
            sampler = _kind(facts["kind"])(**facts["settings"])
            weights = torch.load(place / _WEIGHTS, weights_only=True)
            _require_unchanged(facts, weights)
            sampler.load_state_dict(weights)
            stated = facts["guarantee"]
            guarantee = Guarantee(
                epsilon=stated["epsilon"],
                delta=stated["delta"],
                relation=Relation.parse(stated["relation"]),
                privacy_unit=stated["privacy_unit"],
            )
        except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidParameterError(
                f"{os.fspath(folder)!r} holds no generator of this version of sfumato, or its files were "
                f"changed ({type(error).__name__})."
            ) from error
        names = ("method", "classes", "description", "account", "record_note", "study_note")
        return cls(
            sampler=sampler.eval(),
            guarantee=guarantee,
            findings=tuple(facts["findings"]),
            **{name: facts[name] for name in names},
        )


def _kind(name: str) -> type[nn.Module]:
    """Return the class of a sampler, imported only now: a folder may be loaded before anything was fitted."""
    return getattr(importlib.import_module(_HOMES[name]), name)


def _require_unchanged(facts: dict[str, Any], weights: Any) -> None:
    """Raise unless facts and weights are what was saved. Files of early versions have no fingerprints."""
    if SEAL in facts and not (fits(facts) and fingerprint_of(weights) == facts[_FINGERPRINT]):
        raise ValueError("the files were changed")
