# SPDX-License-Identifier: Apache-2.0
"""What was paid for is handed over in two ways, and one of them may fail."""

from pathlib import Path

import pytest

from sfumato.cli.releases import hand_over


class Paid:
    """A release that writes itself, or cannot."""

    def __init__(self, error: Exception | None = None):
        self.error = error

    def to_json(self, place):
        self.write(place, "{}")

    def to_csv(self, place):
        self.write(place, "a,b")

    def write(self, place, text):
        if self.error is not None:
            raise self.error
        Path(place).write_text(text)


def test_a_release_is_in_its_file_though_nobody_reads_what_is_shown(tmp_path):
    def show():
        raise BrokenPipeError

    for name, text in {"found.json": "{}", "found.CSV": "a,b"}.items():
        with pytest.raises(BrokenPipeError):
            hand_over(Paid(), str(tmp_path / name), show)
        assert (tmp_path / name).read_text() == text


def test_a_release_is_shown_though_its_file_cannot_be_written(tmp_path):
    shown = []
    with pytest.raises(OSError, match="full"):
        hand_over(Paid(OSError("full")), str(tmp_path / "found.json"), lambda: shown.append(1))
    hand_over(Paid(OSError("full")), None, lambda: shown.append(2))
    assert shown == [1, 2]
