# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.cli.pate_settings import PateSettings


@pytest.mark.parametrize(
    "data, own", [("digits", False), (None, False), ("a.csv", True), ("b.parquet", True)]
)
def test_a_file_is_known_by_its_name(data, own):
    assert PateSettings(data=data).is_own is own
