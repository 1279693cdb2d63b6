# SPDX-License-Identifier: Apache-2.0
"""Labels of any type are the classes that they say; one label changes no other one, and none raises."""

import array
import itertools

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from sfumato.cli import own_data
from sfumato.errors import InvalidParameterError
from sfumato.generative.adversarial.dp_gan import DPCGAN
from sfumato.generative.adversarial.pate_cgan import PateCGAN
from sfumato.generative.images import image_rows
from sfumato.generative.images.class_labels import class_numbers
from sfumato.generative.images.diffusion import Diffusion
from sfumato.generative.images.kernel_mean import KernelMean
from sfumato.generative.images.mixtures import NoisyMixtures
from sfumato.ledger import Budget, Ledger
from sfumato.testing import seeded

GIVEN = [0, 1, 2, 0]
FLOATS = [0.0, 1.0, 2.0, 0.0]
COLUMNS = {
    "list": FLOATS,
    "array": array.array("d", FLOATS),
    "long doubles in a list": [np.longdouble(label) for label in GIVEN],
    "long doubles in objects": np.array([np.longdouble(label) for label in GIVEN], dtype=object),
    "tensors in a list": [torch.tensor(label) for label in FLOATS],
    "objects": np.array(FLOATS, dtype=object),
    "texts": np.array(["0", "1.0", "02", "0.0"]),
    "bytes": np.array([b"0", b"1", b"2", b"0"]),
    "complex": np.array(GIVEN, dtype=complex),
    "long double": np.array(GIVEN, dtype=np.longdouble),
    "other byte order": np.array(GIVEN, dtype=">f8"),
    "booleans of torch": torch.tensor([False, True, True, False]),
    "sparse": pd.Series(pd.arrays.SparseArray(FLOATS)),
    "category": pd.Series(FLOATS).astype("category"),
    "polars": pl.Series(FLOATS),
    "polars decimals": pl.Series(["0", "1", "2", "0"]).cast(pl.Decimal(5, 1)),
    "pyarrow": pa.array(FLOATS),
    "pyarrow chunks": pa.chunked_array([[0.0, 1.0], [2.0, 0.0]]),
    "pyarrow dictionary": pa.array(["0", "1", "2", "0"]).dictionary_encode(),
    "pyarrow scalars": list(pa.array(GIVEN)),
    **{f"numpy {kind}": np.array(GIVEN, dtype=kind) for kind in ("f2", "f4", "f8", "u1", "u8", "i8")},
    **{
        f"torch {kind}": torch.tensor(FLOATS).to(kind)
        for kind in (torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.uint8)
    },
    **{f"pandas {kind}": pd.Series(FLOATS, dtype=kind) for kind in ("float32", "Float64", "Int64")},
    **{f"pandas {kind}": pd.Series(GIVEN).astype(kind) for kind in ("str", "string", "double[pyarrow]")},
}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_label_is_the_class_that_it_says_in_every_type(column, recwarn):
    expected = [0, 1, 1, 0] if column == "booleans of torch" else GIVEN
    assert class_numbers(COLUMNS[column], classes=3).tolist() == expected and not recwarn.list


ODD = [0.5, -1, 3, 10**400, "tea", "", None, float("nan"), float("inf"), 2 + 1j, b"x", pd.NA, pd.NaT, [], {}]
KINDS = {
    "list": list,
    "objects": lambda labels: pd.Series(labels, dtype=object),
    "numpy": lambda labels: np.array(labels) if not isinstance(labels[1], list) else labels,
    "pandas": pd.Series,
    "duration": lambda labels: np.array([labels[0], np.timedelta64(3, "us"), labels[2]]),
    "time": lambda labels: np.array([labels[0], np.datetime64("2020-01-01"), labels[2]]),
    "masked": lambda labels: np.ma.array([labels[0], 1, labels[2]], mask=[False, True, False]),
}


@pytest.mark.parametrize(("odd", "kind"), [*itertools.product(ODD, KINDS)])
def test_one_label_that_is_no_class_changes_no_other_one(odd, kind, recwarn):
    """It may change the type of the whole column, so a type is no reason to refuse labels."""
    assert class_numbers(KINDS[kind]([2, odd, 0]), classes=3).tolist() == [2, -1, 0] and not recwarn.list


@pytest.mark.parametrize(
    "labels",
    ["0120", b"0120", {0: 1}, {0, 1}, 3, np.array(3), torch.eye(4), np.eye(4), pd.DataFrame({"y": GIVEN})],
    ids=lambda labels: type(labels).__name__,
)
def test_what_is_no_column_of_labels_is_refused_by_its_form(labels):
    with pytest.raises(InvalidParameterError, match=r"one class number for each image.*argmax"):
        class_numbers(labels, classes=3)


class Read(Exception):
    """Raised in place of reading labels."""


def _stop(*_args, **_keywords):
    raise Read


@pytest.mark.parametrize("method", [DPCGAN, PateCGAN, Diffusion, KernelMean, NoisyMixtures])
def test_every_method_reads_labels_here_and_before_the_charge(method, monkeypatch, tmp_path):
    monkeypatch.setattr(image_rows, "class_numbers", _stop)
    account = Ledger(tmp_path / "l.db").open(
        "t", privacy_unit="example", budget=Budget(epsilon=9, delta=1e-3)
    )
    data = (torch.zeros(4, 1, 8, 8), GIVEN)
    with pytest.raises(Read):
        method().fit(data, classes=3, public_size=4, epsilon=1.0, account=account, purpose="test")
    assert account.releases() == []


def test_files_of_arrays_are_read_here(monkeypatch, tmp_path):
    np.savez(
        tmp_path / "own.npz", x=np.zeros((4, 8, 8), np.uint8), y=np.array([0.0, 1.0, 2.5, np.nan], ">f8")
    )
    found = own_data._loaded(tmp_path / "own.npz", 3, owned=False)[0]
    assert found[1].tolist() == [0, 1] and len(found[0]) == 2
    monkeypatch.setattr(own_data, "class_numbers", _stop)
    with pytest.raises(Exception, match="could not be read"):
        own_data._loaded(tmp_path / "own.npz", 3, owned=False)


FAST = [NoisyMixtures(clusters=2, axes=4), KernelMean(features=50, architecture="dense", steps=2, rows=4)]


@pytest.mark.parametrize("method", FAST, ids=["mixtures", "kernel mean"])
def test_a_fit_does_not_depend_on_the_type_of_labels(method):
    images, labels = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
    terms = {"epsilon": 9.0, "classes": 3, "public_size": 60, "progress": False}
    drawn: list[float] = []
    for given in (labels, labels.double(), [str(label) for label in labels.tolist()]):
        torch.manual_seed(0)  # of the first weights
        made = method.fit((images, given), **terms, generator=seeded(1))
        drawn.append(made.sample(6, seed=0)[0].sum().item())
    assert drawn[0] == pytest.approx(drawn[1]) == pytest.approx(drawn[2])


@pytest.mark.parametrize("method", FAST, ids=["mixtures", "kernel mean"])
def test_noisy_counts_tell_that_no_label_was_a_class(method):
    """The statement always names the rule; the warning is computed from what was released."""
    terms = {"epsilon": 9.0, "classes": 3, "public_size": 300, "progress": False, "generator": seeded(1)}
    images, labels = torch.rand(300, 1, 8, 8), torch.arange(300) % 3
    for given, warned in ((labels, False), (labels + 0.5, True), (["tea"] * 300, True)):
        said = method.fit((images, given), **terms).statement()
        assert "a whole number from 0 to 2, in any type; others were left out" in said
        assert ("no count of images was above its noise" in said) is warned
