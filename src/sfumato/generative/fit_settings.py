# SPDX-License-Identifier: Apache-2.0
"""What every `fit` of a generator takes: the budget, who pays, and public facts about the data."""

import os
from collections.abc import Generator as Yields
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict

import torch

from sfumato import _check
from sfumato.accounting.default_delta import delta_or_default
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.collapse import find_collapse
from sfumato.generative.evaluation.rows import labeled_rows
from sfumato.generative.generator import GENERATOR, ImageGenerator
from sfumato.generative.previews import Previews
from sfumato.ledger.account import Account
from sfumato.ledger.recorded import record_note
from sfumato.mechanisms.random import Generator, study_note
from sfumato.training.privacy.terms import privacy_unit_of
from sfumato.training.run_audit import RunAudit, require_audit

__all__ = ["FitKeywords", "FitSettings"]

_JUDGED = 500  # draws in which collapse is looked for


class FitKeywords(TypedDict, total=False):
    """The keywords of `fit`: the fields of `FitSettings`."""

    epsilon: float | None
    delta: float | None
    classes: int | None
    public_size: int | None
    public: Any
    account: Account | None
    purpose: str | None
    privacy_unit: str | None
    folder: str | os.PathLike[str] | None
    preview: str | os.PathLike[str] | None
    resume: bool
    audit: RunAudit | None
    device: torch.device | str | None
    progress: bool
    generator: Generator | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FitSettings:
    """The budget of a generator, who pays for it, and what is public about the data.

    Args:
        epsilon: The privacy budget of the generator.
        delta: The delta of the guarantee. Default: that of the account, or else the largest power of ten
            below 1 / `public_size`.
        classes: The number of classes, which is public. A data set of `sfumato.datasets` states its own.
        public_size: The number of images that may be known. A data set states its own.
        public: Public images, with labels or without, to learn from first. They are not protected.
        account: The account that pays, before an image is read.
        purpose: What the generator is for. The account keeps it.
        privacy_unit: Who is protected, in a word, if each image is another one.
        folder: Where the generator is written, with checkpoints on the way.
        preview: Where grids of samples are written while it learns, which costs nothing. `NoisyMixtures`
            has no steps, and writes none.
        resume: Whether to continue the run in the folder, which is not charged again.
        audit: `sfumato.audit.Canaries(...)`, where DP-SGD is used.
        device: Where to train. Default: a GPU if there is one.
        progress: Whether to show a bar.
        generator: The source of noise. Default: secure. A seeded one protects nobody.

    Raises:
        InvalidParameterError: If a setting is missing or out of range.
    """

    epsilon: float | None = None
    delta: float | None = None
    classes: int | None = None
    public_size: int | None = None
    public: Any = field(default=None, repr=False)
    account: Account | None = None
    purpose: str | None = None
    privacy_unit: str | None = None
    folder: str | os.PathLike[str] | None = None
    preview: str | os.PathLike[str] | None = None
    resume: bool = False
    audit: RunAudit | None = None
    device: torch.device | str | None = None
    progress: bool = True
    generator: Generator | None = None

    def __post_init__(self) -> None:
        if self.epsilon is None:
            raise InvalidParameterError("pass epsilon=..., the privacy budget of the generator.")
        _check.positive(epsilon=self.epsilon)
        if self.account is not None and self.purpose is None:
            raise InvalidParameterError("an account keeps a purpose with every release: pass purpose='...'.")
        if self.account is None and self.purpose is not None:
            raise InvalidParameterError(
                "a purpose is written into an account, but none was given: pass account=..."
            )
        if self.account is not None and self.account.relation is not Relation.ADD_REMOVE:
            raise InvalidParameterError(
                f"generators are priced for add-remove neighbors, but account {self.account.name!r} is of "
                f"{self.account.relation.value} neighbors. Open one with relation='add-remove'."
            )
        self.unit  # noqa: B018 - raises if the account protects someone else
        require_audit(self.audit)
        if self.folder is not None and (Path(self.folder) / GENERATOR).exists():
            raise InvalidParameterError(
                f"the folder {os.fspath(self.folder)!r} holds another generator, which was paid for. Use "
                "another folder."
            )
        if self.preview is not None and Path(self.preview).exists() and not Path(self.preview).is_dir():
            raise InvalidParameterError(
                f"preview={os.fspath(self.preview)!r} is a file. Pass a folder, which is made if needed."
            )

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> "FitSettings":
        """Return the settings; raise for a keyword that there is not.

        Args:
            keywords: The keywords.

        Returns:
            The settings.

        Raises:
            InvalidParameterError: If a keyword is unknown or out of range.

        >>> FitSettings.of({"epsilom": 1.0})
        Traceback (most recent call last):
        sfumato.errors.InvalidParameterError: unknown keyword 'epsilom'. Did you mean 'epsilon'?
        """
        _check.keywords(keywords, [each.name for each in fields(cls)])
        return cls(**keywords)

    @property
    def budget(self) -> float:
        """The epsilon, which was checked."""
        assert self.epsilon is not None
        return self.epsilon

    @property
    def unit(self) -> str:
        """Who is protected."""
        return privacy_unit_of(self.privacy_unit, self.account, by_owner=False)

    def delta_for(self, public_size: int) -> float:
        """Return the delta: the given one, else that of the account, else the default.

        Args:
            public_size: The number of images that may be known.

        Returns:
            The delta.
        """
        if self.delta is None and self.account is not None:
            return self.account.budget.delta
        return delta_or_default(self.delta, public_size)

    def refuse(self, *names: str) -> None:
        """Raise if a setting was given that a method has no use for.

        Args:
            *names: The settings.

        Raises:
            InvalidParameterError: If one of them was given.
        """
        for name in names:
            given = getattr(self, name)
            if given is not None and given is not False:
                raise InvalidParameterError(f"this method has no use for {name}: leave it out.")

    def released(self, made: ImageGenerator) -> ImageGenerator:
        """Return a generator with signs of collapse in its draws; write it into the folder if there is one.

        It is written before anything is drawn, too: it is paid for, and a draw may fail.

        Args:
            made: The generator.

        Returns:
            The generator, whose statement names what was found.
        """
        if self.folder is not None:
            made.save(self.folder)
        images, labels = made.sample(_JUDGED, seed=0)
        judged = find_collapse(labeled_rows(images.numpy(), labels.numpy(), classes=made.classes))
        signs = (f"Warning: {finding}" for finding in judged.findings)
        made = replace(made, findings=(*made.findings, *signs))
        if self.folder is not None and judged.findings:
            made.save(self.folder)
        return made

    def previews(self) -> Previews:
        """Return what writes grids of samples while a generator learns.

        Returns:
            What writes them, or writes nothing if there is no folder for them.
        """
        return Previews(self.preview)

    def where(self) -> torch.device:
        """Return where to train.

        Returns:
            The device.
        """
        if self.device is not None:
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def require_paid(self, event: DpEvent) -> None:
        """Raise if the account cannot pay for everything that a fit releases; nothing is spent.

        Args:
            event: All of it together.

        Raises:
            BudgetExceededError: If it cannot.
        """
        if self.account is not None and not self.account.admits(event):
            # Refused here, so that the error says what is left. What is admitted meanwhile is given back.
            self.account.reserve(
                event,
                purpose=self.purpose or "",
                relation=Relation.ADD_REMOVE,
                generator=self.generator,
            ).refund()

    def purpose_of(self, part: str | None) -> str | None:
        """Return the purpose of a part of the fit, which tells its row in the ledger from others.

        Args:
            part: The part, in a word; None for all of it.

        Returns:
            The purpose, if there is an account.
        """
        return self.purpose if part is None or self.purpose is None else f"{self.purpose}, {part}"

    @contextmanager
    def paid(self, event: DpEvent, *, part: str | None = None) -> Yields[None]:
        """Charge an event before the block runs, and commit it at its end. A failure leaves it spent.

        Args:
            event: What the block releases.
            part: What is charged, in a word, if the fit is charged in parts.

        Yields:
            Nothing.

        Raises:
            BudgetExceededError: If the account cannot pay. The block does not run.
        """
        if self.account is None:
            yield
            return
        with self.account.spend(
            event, purpose=self.purpose_of(part) or "", relation=Relation.ADD_REMOVE, generator=self.generator
        ):
            yield

    def facts(self, event: DpEvent, *, delta: float) -> dict[str, Any]:
        """Return what a generator states of its release.

        Args:
            event: All of it together.
            delta: The delta of the guarantee.

        Returns:
            Fields of a generator: guarantee, account and notes.
        """
        promise: Guarantee = price(event, delta=delta, relation=Relation.ADD_REMOVE).guarantee(self.unit)
        return {
            "guarantee": promise,
            "account": None if self.account is None else self.account.name,
            "record_note": record_note(self.account),
            "study_note": study_note(self.generator),
        }
