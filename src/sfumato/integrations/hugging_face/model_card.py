# SPDX-License-Identifier: Apache-2.0
"""The privacy card of a run in the model card of Hugging Face, the file README.md beside the weights.

Guarantee  The card says what the run claims. Text of the model card outside of the part between the two marks
           stays as it is, and so do the keys of its header that the card does not set.
"""

import re
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
    text = path.read_text(encoding="utf-8") if path.exists() else "---\n{}\n---\n"
    found = ModelCard(text, ignore_metadata_errors=True)
    header = found.data.to_dict() | card.metadata()
    own = f"{_BEGIN}\n\n{card.to_markdown().strip()}\n\n{_END}\n"
    before, _, rest = found.text.partition(_BEGIN)
    body = f"{before.rstrip()}\n\n{own}{re.sub('^.*?' + re.escape(_END), '', rest, flags=re.DOTALL).lstrip()}"
    whole = f"---\n{ModelCardData(**header).to_yaml()}\n---\n{body.lstrip() if before.strip() else body}"
    _files.write_whole(path, whole.encode())
