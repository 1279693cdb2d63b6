# SPDX-License-Identifier: Apache-2.0
"""Credit card clients in Taiwan, 2005: predict whether a client misses the next payment.

Every client whose ID is divisible by 5 is for testing: 24,000 and 6,000. The side of a client depends on that
client alone, so adding or removing another changes nothing else.

Codes are those that the description of the set lists; others (they occur) go to the catch-all category. The
description gives no ranges for amounts: those declared here are round numbers, and amounts outside are moved
in.
"""

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sfumato.datasets.columns import Category, Column, Number, encode, encoded_names
from sfumato.datasets.dataset import Dataset, Examples
from sfumato.datasets.files import Content, Form, read
from sfumato.datasets.places import Folder

__all__ = ["COLUMNS", "credit_default"]

_URL = "https://archive.ics.uci.edu/static/public/350/data.csv"
_HEADER = ",".join(["ID", *(f"X{i}" for i in range(1, 24)), "Y"])  # in the repository's own CSV
_NTD = 1_000.0  # New Taiwan dollars; below about this much, amounts are spread evenly
_TEST_EVERY = 5

COLUMNS: tuple[Column, ...] = (
    Number("LIMIT_BAL", 0, 1_000_000, log_unit=_NTD),
    Category("SEX", ("1", "2")),
    Category("EDUCATION", ("1", "2", "3", "4")),
    Category("MARRIAGE", ("1", "2", "3")),
    Number("AGE", 18, 100),
    *(Number(f"PAY_{month}", -2, 9) for month in (0, 2, 3, 4, 5, 6)),  # months late; 9 is "nine or more"
    *(Number(f"BILL_AMT{month}", -1_000_000, 2_000_000, log_unit=_NTD) for month in range(1, 7)),
    *(Number(f"PAY_AMT{month}", 0, 2_000_000, log_unit=_NTD) for month in range(1, 7)),
)


def from_named_columns(path: Path) -> bytes:
    """Turn the copy with column names (`.csv.gz`) into the repository's CSV: its header, its line ends."""
    lines = gzip.decompress(path.read_bytes()).decode("ascii").splitlines()
    return "".join(f"{line}\r\n" for line in (_HEADER, *lines[1:])).encode("ascii")


FILE = Content(
    path="credit_default/data.csv",
    sha256="45bcf4df62ff2e237a74eb155cabfb4bbbc171219a0637daef44fdad07503dd0",
    urls=(_URL,),
    forms=(
        Form(
            path="credit_default/default_of_credit_card_clients.csv.gz",
            sha256="27795e7ee11c60e64c511c7f28d5b06970c01393e9e0abd5cfe3df43f198cc83",
            decode=from_named_columns,
        ),
    ),
)


def credit_default(*, folder: Folder = None) -> Dataset:
    """Load credit default: 23 columns about a client, encoded as 32 features."""
    rows = _rows(read(FILE, folder=folder))
    for_test = rows[:, 0].astype(np.int64) % _TEST_EVERY == 0
    return Dataset(
        name="credit-default",
        train=_examples(rows[~for_test]),
        test=_examples(rows[for_test]),
        classes=("paid", "default"),
        bounds=(0.0, 1.0),
        source="I-C. Yeh, Default of Credit Card Clients, UCI, 2009, doi:10.24432/C55S3H",
        license="CC BY 4.0",
        feature_names=encoded_names(COLUMNS),
    )


def _rows(data: bytes) -> npt.NDArray[np.str_]:
    return np.array([line.split(",") for line in data.decode("ascii").splitlines()[1:]])


def _examples(rows: npt.NDArray[np.str_]) -> Examples:
    return Examples(encode(COLUMNS, rows[:, 1:-1]), torch.from_numpy(rows[:, -1].astype(np.int64)))
