# SPDX-License-Identifier: Apache-2.0
"""A fitted generator of synthetic rows, with the guarantee of the release that made it.

Guarantee  A generator holds noisy results only, so rows that it makes cost nothing more, however many.
Failure    A condition that no row can meet is refused with `ImpossibleError` or `InvalidParameterError`.
"""

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from sfumato import _check, _files
from sfumato._seal import SEAL, fits, sealed
from sfumato.accounting import events
from sfumato.accounting.event_words import proved_by, told
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.domain import Category, Domain, Number
from sfumato.generative.tables.model.belief_propagation import ImpossibleError
from sfumato.generative.tables.model.graphical_model import GraphicalModel
from sfumato.ledger.recorded import UNRECORDED
from sfumato.report import notebook
from sfumato.report.cards import words
from sfumato.report.cards.card import PrivacyCard

__all__ = ["TableGenerator", "saved_facts"]

_FORMAT = 1
_SETS = 30  # of columns that a statement names; the card names all
USE = (
    "Synthetic rows follow the data in single columns and in these sets of columns. What they show of small "
    "groups, of rare values, and of sets of columns that were not measured may be wrong."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class TableGenerator:
    """A distribution over the rows of a table, fitted to noisy marginals.

    Attributes:
        domain: The columns, declared or bought.
        model: The distribution of codes.
        guarantee: What is promised about the private table.
        facts: How it was made, as plain values: settings and event.
        account: The name of the account that was charged.
        notes: What a statement must say besides.
    """

    domain: Domain
    model: GraphicalModel = field(repr=False)
    guarantee: Guarantee
    facts: Mapping[str, Any] = field(repr=False)
    account: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows of the private table, as estimated from noisy counts."""
        return max(1, round(self.model.total))

    @property
    def measured_sets(self) -> tuple[tuple[str, ...], ...]:
        """The sets of columns whose counts were measured together, by their names."""
        names = self.domain.names
        chosen = [columns for columns in self.model.potentials if len(columns) > 1]
        return tuple(tuple(names[column] for column in columns) for columns in chosen)

    def sample(
        self, n: int | None = None, *, given: Mapping[str, Any] | None = None, seed: int | None = None
    ) -> Any:
        """Return synthetic rows. This costs nothing.

        Args:
            n: How many rows. Default: as many as the private table has, by its noisy counts.
            given: Values that some columns must have. Numbers select their bin.
            seed: Makes the same rows again. None draws anew.

        Returns:
            A pandas DataFrame.

        Raises:
            InvalidParameterError: If a column or value does not exist, or `n` or `seed` is no whole number.
            ImpossibleError: If no row of the model meets the condition.
        """
        wanted = self.rows if n is None else n
        _check.count(n=wanted)
        _require_settings(given, seed)
        fixed = {} if given is None else self._codes(given)
        model = self.model
        if fixed:
            try:
                model = model.given(fixed)
            except ImpossibleError:
                raise ImpossibleError(
                    f"no synthetic row can have {dict(given or {})!r}: the model gives it probability 0."
                ) from None
        randomness = np.random.default_rng(seed)
        codes = model.sample(wanted, randomness)
        made = self.domain.decode(codes, seed=int(randomness.integers(2**62)))
        for name, value in (given or {}).items():
            if value is not None and isinstance(self.domain.columns[name], Number):
                made[name] = value  # the number itself, not another one of its bin
        return made

    def _codes(self, given: Mapping[str, Any]) -> dict[int, int]:
        return {self.domain.place(name): self._code(name, value) for name, value in given.items()}

    def _code(self, name: str, value: Any) -> int:
        declared = self.domain.columns[name]
        code = int(declared.encode([value])[0])
        if isinstance(declared, Category):
            listed = value in declared.values or (declared.missing and code < len(declared.values))
            if listed or (declared.missing and value is None):
                return code
            raise InvalidParameterError(
                f"column {name!r} has no value {value!r}. Its values are: {list(declared.values)!r}."
            )
        if value is None and declared.missing:
            return code
        number = isinstance(value, int | float) and declared.lower <= value <= declared.upper
        if not number:
            raise InvalidParameterError(
                f"column {name!r} has no value {value!r}. It lies between {declared.lower!r} and "
                f"{declared.upper!r}."
            )
        return code

    def marginal(self, columns: str | Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the model's probabilities of the codes of some columns together. This costs nothing.

        Args:
            columns: The name of a column, or several.

        Returns:
            The probabilities, one axis for each column, in the order of the domain's codes.

        Raises:
            InvalidParameterError: If a column does not exist or is named twice.
        """
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        if not names or len(set(names)) < len(names):
            raise InvalidParameterError("pass one or more columns, each once.")
        return self.model.marginal(tuple(self.domain.place(name) for name in names)).copy()

    def statement(self) -> str:
        """Return a paragraph for people who must judge the claim.

        Returns:
            What was released, how, and the guarantee.
        """
        said = (
            *self._mechanism(),
            USE,
            f"The generator, and every row it makes, satisfies {self.guarantee}.",
            f"One {self.guarantee.privacy_unit} has at most {self._rows_of_one()}; "
            + (
                "further rows were left out."
                if self.facts["bounded"]
                else "this was stated by the caller and not checked."
            )
            if self.facts["rows_per_unit"] > 1 or self.facts["bounded"] or self._stated
            else None,
            f"The release was charged to {self.account!r}." if self.account else None,
            *(f"{note[0].upper()}{note[1:]}." for note in self.notes),
        )
        return " ".join(sentence for sentence in said if sentence)

    @property
    def _stated(self) -> bool:
        """Whether it was stated by the caller that each row is another unit."""
        return self.guarantee.privacy_unit not in ("row", "example")

    def _rows_of_one(self) -> str:
        rows = self.facts["rows_per_unit"]
        return f"{rows} row" if rows == 1 else f"{rows} rows"

    def _mechanism(self) -> tuple[str, str]:
        """Return what was done to the private table, in sentences."""
        return (
            f"A generator of synthetic rows of {len(self.domain.names)} columns was fitted to noisy counts "
            f"of the private table: to those of each column, and to those of {self.facts['measured']} sets "
            "of columns that were chosen one after another by a noisy comparison with the model"
            f"{self._sets()}.",
            f"Values of {self.facts['bought']} of the columns were found by the same release."
            if self.facts["bought"]
            else "The values that each column may have were declared.",
        )

    def _sets(self) -> str:
        """Return the measured sets of columns in words, at most so many that a paragraph stays one."""
        named = [" x ".join(each) for each in self.measured_sets]
        rest = f"; and {len(named) - _SETS} more" if len(named) > _SETS else ""
        return f": {'; '.join(named[:_SETS])}{rest}" if named else ""

    def card(self, *, title: str | None = None) -> PrivacyCard:
        """Return the privacy card of the generator, for those who use its rows.

        Args:
            title: The title of the card. Default: what was made.

        Returns:
            The card.
        """
        event = events.from_json(json.dumps(self.facts["event"]))
        accountant, theorem = proved_by(event, self.guarantee)
        study = self._study_note
        return PrivacyCard(
            title="A generator of rows of a table" if title is None else title,
            released=words.GENERATOR,
            data="the private table",
            guarantee=self.guarantee,
            theorem=theorem,
            accountant=accountant,
            mechanism=(*self._mechanism(), f"Charged: {told(event)}."),
            numerics=(words.noise_source(study), words.COST_IN_FLOATS),
            study_note=study,
            account=self.account,
            record_note=next((note for note in self.notes if note.startswith(UNRECORDED)), None),
            facts={
                "columns": ", ".join(self.domain.names),
                "sets of columns that were measured": "; ".join(map(" x ".join, self.measured_sets))
                or "none",
                "what it is good for": USE,
            },
            covers="this generator alone",
            statement=self.statement(),
            code_version=words.code_version(),
        )

    def _repr_html_(self) -> str:
        return notebook.RunView(
            title="A generator of rows of a table",
            guarantee=self.guarantee,
            statement=self.statement(),
            facts={"columns": ", ".join(self.domain.names), "account": self.account},
            study_note=self._study_note,
        ).html()

    @property
    def _study_note(self) -> str | None:
        return next((note for note in self.notes if note.startswith(words.STUDY)), None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model as plain values.

        Returns:
            The values, by name.
        """
        return {
            "format": _FORMAT,
            **self.facts,
            "domain": self.domain.to_dict(),
            "guarantee": self.guarantee.to_dict(),
            "account": self.account,
            "notes": list(self.notes),
            "statement": self.statement(),
            "code_version": version("sfumato"),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the generator to a file. It holds noisy results only, and no code.

        Args:
            path: The file, replaced if it exists.
        """
        arrays: dict[str, Any] = {"total": np.array(self.model.total)}
        for columns, values in self.model.potentials.items():
            arrays["potential " + " ".join(map(str, columns))] = values
        facts = sealed(self.to_dict() | {_FINGERPRINT: _fingerprint_of(arrays)})
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        _files.write_whole(Path(path), content.getvalue())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "TableGenerator":
        """Return the generator of a file.

        Args:
            path: The file.

        Returns:
            The generator.

        Raises:
            InvalidParameterError: If the file is not one of a generator, or was changed.
        """
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                return _read({name: file[name] for name in file.files})
        except _UNREADABLE as error:
            raise InvalidParameterError(
                f"{path} is not a file of a table generator, or was changed."
            ) from error


_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile)


def saved_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what the file of a generator says of it; raise if it is not one."""
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            return json.loads(bytes(file["facts"]).decode())
    except (*_UNREADABLE, IndexError, AttributeError) as error:
        raise InvalidParameterError(f"{path} is not a file of a table generator.") from error


def _require_settings(given: Any, seed: Any) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidParameterError("given must map columns to values: given={'city': 'Rome'}.")
    if seed is not None and not (isinstance(seed, int | np.integer) and seed >= 0):
        raise InvalidParameterError(f"seed must be None or a whole number of at least 0, but is {seed!r}.")


_FINGERPRINT = "model_sha256"
_NOT_FACTS = (
    *("format", "domain", "guarantee", "account", "notes", "statement", "code_version"),
    *(SEAL, _FINGERPRINT),
)


def _fingerprint_of(arrays: Mapping[str, Any]) -> str:
    """Return the fingerprint of the arrays of a model, by their names."""
    digest = hashlib.sha256()
    for name, values in sorted(arrays.items()):
        whole = np.ascontiguousarray(values)
        digest.update(f"{name} {whole.dtype.str} {whole.shape}\n".encode() + whole.tobytes())
    return digest.hexdigest()


def _read(arrays: Mapping[str, Any]) -> TableGenerator:
    plain = json.loads(bytes(arrays["facts"]).decode())
    if plain["format"] != _FORMAT:
        raise ValueError("another format")
    model = {name: values for name, values in arrays.items() if name != "facts"}
    if SEAL in plain and not (fits(plain) and _fingerprint_of(model) == plain[_FINGERPRINT]):
        raise ValueError("the file was changed")  # files of early versions have no fingerprints
    domain, promised = Domain.from_dict(plain["domain"]), plain["guarantee"]
    potentials = {
        tuple(int(column) for column in name.split()[1:]): values
        for name, values in arrays.items()
        if name.startswith("potential")
    }
    return TableGenerator(
        domain=domain,
        model=GraphicalModel(sizes=domain.sizes, total=float(arrays["total"]), potentials=potentials),
        guarantee=Guarantee(
            epsilon=promised["epsilon"],
            delta=promised["delta"],
            relation=Relation.parse(promised["relation"]),
            privacy_unit=promised["privacy_unit"],
        ),
        facts={name: value for name, value in plain.items() if name not in _NOT_FACTS},
        account=plain["account"],
        notes=tuple(plain["notes"]),
    )
