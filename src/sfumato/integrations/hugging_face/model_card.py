# SPDX-License-Identifier: Apache-2.0
"""The privacy card of a run in the model card of Hugging Face, the file README.md beside the weights.

Guarantee  The card says what the run claims. Text of the model card outside of the part between the two marks
           stays as it is, and so do the keys of its header that the card does not set.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from huggingface_hub import ModelCard, ModelCardData

from sfumato import _files

__all__ = ["Card", "write"]

_BEGIN: Final = "<!-- privacy card: begin -->"
_END: Final = "<!-- privacy card: end -->"


class Card(Protocol):
    """A privacy card, as `TrainingRun.card()` makes it."""

    def to_markdown(self) -> str:
        """Return the card as Markdown."""
        ...

    def metadata(self) -> dict[str, Any]:
        """Return what belongs into the header of a model card."""
        ...


def write(path: Path, card: Card) -> None:
    """Write a privacy card into a model card; a model card is made where there is none."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = ModelCard(text, ignore_metadata_errors=True)
    before, _, rest = found.text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    parts = (before.strip(), f"{_BEGIN}\n\n{card.to_markdown().strip()}\n\n{_END}", after.strip())
    header = ModelCardData(**_merged(found.data.to_dict(), card.metadata())).to_yaml()
    body = "\n\n".join(part for part in parts if part)
    _files.write_whole(path, f"---\n{header}\n---\n\n{body}\n".encode())


def _merged(header: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header with the keys of a card; tags are added to those that are there."""
    tags = [*(header.get("tags") or []), *(own.get("tags") or [])]
    return {**header, **own, **({"tags": list(dict.fromkeys(tags))} if tags else {})}
