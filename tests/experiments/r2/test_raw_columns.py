# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.datasets.columns import Category, Number, encode
from sfumato.experiments.r2 import public_rows
from sfumato.experiments.r2.raw_columns import decoded, raw_parts

COLUMNS = (Number("bill", -1e6, 2e6, log_unit=1000.0), Number("age", 18, 100), Category("sex", ("1", "2")))


def test_what_was_encoded_is_decoded():
    table = np.array([["-250", "25", "2"], ["0", "18", "1"], ["1500000", "77", "2"]])
    found = decoded(COLUMNS, encode(COLUMNS, table).double().numpy())
    assert found == pytest.approx(table.astype(float), rel=1e-4, abs=0.5)


def test_raw_columns_differ_in_size_and_labels_stay():
    raw, scaled = raw_parts(quick=True), public_rows.parts(quick=True)
    assert raw[0].features.max() > 1000 and raw[0].features.shape == scaled[0].features.shape
    assert all(np.array_equal(a.labels, b.labels) for a, b in zip(raw, scaled, strict=True))
