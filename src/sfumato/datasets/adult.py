# SPDX-License-Identifier: Apache-2.0
"""Adult (census income): predict whether a person earns more than 50,000 dollars a year.

The split is the published one: 32,561 rows for training (`adult.data`), 16,281 for testing (`adult.test`).

Categories are those that `adult.names` lists; a `?` goes to the catch-all category. Ranges are declared: ages
from 16, the youngest in the survey, 16 levels of education, two-digit hours, five-digit dollars.

`fnlwgt` is left out: it describes the survey (how many people a row stands for), not the person.
"""

import csv

import numpy as np
import numpy.typing as npt
import torch

from sfumato.datasets.columns import Category, Column, Number, encode, encoded_names
from sfumato.datasets.dataset import Dataset, Examples
from sfumato.datasets.files import Content, Form, member_of_zip, read
from sfumato.datasets.places import Folder

__all__ = ["COLUMNS", "adult"]

_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_ZIP_URL = "https://archive.ics.uci.edu/static/public/2/adult.zip"
_FNLWGT, _LABEL, _WIDTH = 2, 14, 15
_DOLLARS = 1_000.0  # below about this much, amounts are spread evenly; above, by their logarithm

_WORKCLASS = (
    *("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov"),
    *("Local-gov", "State-gov", "Without-pay", "Never-worked"),
)
_EDUCATION = (
    *("Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th"),
    *("7th-8th", "12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool"),
)
_MARITAL_STATUS = (
    *("Married-civ-spouse", "Divorced", "Never-married", "Separated"),
    *("Widowed", "Married-spouse-absent", "Married-AF-spouse"),
)
_OCCUPATION = (
    *("Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty"),
    *("Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving"),
    *("Priv-house-serv", "Protective-serv", "Armed-Forces"),
)
_RELATIONSHIP = ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried")
_RACE = ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black")
_COUNTRY = (
    *(
        "United-States",
        "Cambodia",
        "England",
        "Puerto-Rico",
        "Canada",
        "Germany",
        "Outlying-US(Guam-USVI-etc)",
    ),
    *(
        "India",
        "Japan",
        "Greece",
        "South",
        "China",
        "Cuba",
        "Iran",
        "Honduras",
        "Philippines",
        "Italy",
        "Poland",
    ),
    *(
        "Jamaica",
        "Vietnam",
        "Mexico",
        "Portugal",
        "Ireland",
        "France",
        "Dominican-Republic",
        "Laos",
        "Ecuador",
    ),
    *(
        "Taiwan",
        "Haiti",
        "Columbia",
        "Hungary",
        "Guatemala",
        "Nicaragua",
        "Scotland",
        "Thailand",
        "Yugoslavia",
    ),
    *("El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands"),
)

COLUMNS: tuple[Column, ...] = (
    Number("age", 16, 100),
    Category("workclass", _WORKCLASS),
    Category("education", _EDUCATION),
    Number("education-num", 1, 16),
    Category("marital-status", _MARITAL_STATUS),
    Category("occupation", _OCCUPATION),
    Category("relationship", _RELATIONSHIP),
    Category("race", _RACE),
    Category("sex", ("Female", "Male")),
    Number("capital-gain", 0, 99_999, log_unit=_DOLLARS),
    Number("capital-loss", 0, 99_999, log_unit=_DOLLARS),
    Number("hours-per-week", 0, 99),
    Category("native-country", _COUNTRY),
)


def _file(name: str, sha256: str) -> Content:
    archive = Form(path="adult/adult.zip", sha256=None, urls=(_ZIP_URL,), decode=member_of_zip(name))
    return Content(path=f"adult/{name}", sha256=sha256, urls=(_URL + name,), forms=(archive,))


TRAIN = _file("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d")
TEST = _file("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05")


def adult(*, folder: Folder = None) -> Dataset:
    """Load Adult: 13 columns of a census row, encoded as 112 features."""
    return Dataset(
        name="adult",
        train=_examples(read(TRAIN, folder=folder)),
        test=_examples(read(TEST, folder=folder)),
        classes=("<=50K", ">50K"),
        bounds=(0.0, 1.0),
        source="B. Becker and R. Kohavi, Adult, UCI, 1996, doi:10.24432/C5XW20",
        license="CC BY 4.0",
        feature_names=encoded_names(COLUMNS),
    )


def _examples(data: bytes) -> Examples:
    rows = _rows(data)
    labels = np.char.startswith(rows[:, _LABEL], ">50K")  # the test file ends its labels in a full stop
    features = encode(COLUMNS, np.delete(rows, (_FNLWGT, _LABEL), axis=1))
    return Examples(features, torch.from_numpy(labels.astype(np.int64)))


def _rows(data: bytes) -> npt.NDArray[np.str_]:
    """Return the cells; the test file's first line and the empty last lines are no rows."""
    lines = csv.reader(data.decode("ascii").splitlines(), skipinitialspace=True)
    return np.array([line for line in lines if len(line) == _WIDTH])
