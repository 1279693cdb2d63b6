# SPDX-License-Identifier: Apache-2.0
"""Synthetic Adult: how well classifiers learn from it, how wrong its marginals are, beside AIM of a peer."""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from models.results import Row, left_out
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from sfumato.datasets import adult as source
from sfumato.datasets.columns import Category as DeclaredCategory
from sfumato.datasets.files import read
from sfumato.generative.tables.domain import Category, Domain, Number
from sfumato.generative.tables.noisy_marginals import NoisyMarginals
from sfumato.generative.tables.workload import all_marginals

EPSILON, DELTA = 1.0, 1e-5
TARGET, RICH = "income", ">50K"
NAMES = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *(
        "relationship",
        "race",
        "sex",
        "capital-gain",
        "capital-loss",
        "hours-per-week",
        "native-country",
        TARGET,
    ),
)
_UNKNOWN = ("workclass", "occupation", "native-country")  # with a `?`, by adult.names
_GAIN = (0, 1, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 10_000, 14_000, 16_000, 20_000, 50_000, 99_999)
_LOSS = (0, 1, 1000, 1300, 1500, 1600, 1700, 1800, 1900, 2000, 2200, 2500, 3000, 99_999)
_BINS: dict[str, Any] = {
    "age": 28,
    "education-num": 16,
    "hours-per-week": 25,
    "capital-gain": _GAIN,
    "capital-loss": _LOSS,
}
PEER = Path(__file__).parents[1] / "peers" / "aim.py"
PEER_PYTHON = Path(os.environ.get("SFUMATO_AIM_PYTHON", Path(__file__).parents[2] / ".venv-aim/bin/python"))


def domain() -> Domain:
    """Return the declared columns: ranges and categories of adult.names."""
    columns: dict[str, Any] = {}
    for column in source.COLUMNS:
        if isinstance(column, DeclaredCategory):
            columns[column.name] = Category(values=column.values, missing=column.name in _UNKNOWN)
        else:
            columns[column.name] = Number(
                lower=column.lower, upper=column.upper, bins=_BINS[column.name], whole=True, missing=False
            )
    columns[TARGET] = Category(values=("<=50K", RICH), missing=False)
    return Domain(columns)


def frame(content: Any) -> pd.DataFrame:
    """Return the rows of one file of Adult, without the weights of the survey."""
    lines = csv.reader(read(content, folder=None).decode("ascii").splitlines(), skipinitialspace=True)
    rows = pd.DataFrame([line for line in lines if len(line) == len(NAMES)], columns=list(NAMES))
    rows[TARGET] = rows[TARGET].str.rstrip(".")
    return rows.drop(columns="fnlwgt")


def tidy(rows: pd.DataFrame, known: Domain) -> pd.DataFrame:
    """Return rows with numbers as numbers and missing categories as text, for classifiers."""
    return pd.DataFrame(
        {
            name: pd.to_numeric(rows[name]).astype(float)
            if isinstance(declared, Number)
            else rows[name].where(rows[name].isin(list(declared.values)), "?").astype(object)
            for name, declared in known.columns.items()
        }
    )


def scores(train: pd.DataFrame, test: pd.DataFrame, known: Domain) -> dict[str, float]:
    """Return the AUROC on real test rows of classifiers that learned from `train`."""
    texts = [
        name for name, declared in known.columns.items() if isinstance(declared, Category) and name != TARGET
    ]
    numbers = [name for name, declared in known.columns.items() if isinstance(declared, Number)]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    models = {
        "gradient boosting": make_pipeline(
            make_column_transformer((codes, texts), ("passthrough", numbers)),
            HistGradientBoostingClassifier(random_state=0),
        ),
        "logistic regression": make_pipeline(
            make_column_transformer(
                (OneHotEncoder(handle_unknown="ignore"), texts), (StandardScaler(), numbers)
            ),
            LogisticRegression(max_iter=300),
        ),
    }
    truth = test[TARGET] == RICH
    return {
        name: float(roc_auc_score(truth, model.fit(train, train[TARGET] == RICH).predict_proba(test)[:, 1]))
        for name, model in models.items()
    }


def marginal_error(truth: Any, made: Any, sizes: tuple[int, ...]) -> float:
    """Return the mean total variation of all two-way marginals."""
    return statistics.mean(
        float(np.abs(_shares(truth, pair, sizes) - _shares(made, pair, sizes)).sum() / 2)
        for pair in combinations(range(len(sizes)), 2)
    )


def _shares(codes: Any, pair: tuple[int, int], sizes: tuple[int, ...]) -> Any:
    cells = codes[:, pair[0]] * sizes[pair[1]] + codes[:, pair[1]]
    return np.bincount(cells, minlength=sizes[pair[0]] * sizes[pair[1]]) / len(codes)


def ours(table: pd.DataFrame, known: Domain) -> tuple[Any, float]:
    """Return synthetic codes and seconds, sampling included. Noise is secure."""
    began = time.perf_counter()
    made = NoisyMarginals().fit(table, domain=known, epsilon=EPSILON, delta=DELTA, progress=False)
    codes = made.model.sample(len(table), np.random.default_rng(0))
    return codes, time.perf_counter() - began


def peers(codes: Any, known: Domain, seed: int) -> tuple[Any, float] | None:
    """Return synthetic codes and seconds of AIM on mbi; None where it is not installed."""
    if not PEER_PYTHON.exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "codes.npy", Path(folder) / "made.npy"
        np.save(given, codes)
        setting = {
            "codes": str(given),
            "result": str(result),
            "sizes": list(known.sizes),
            "workload": all_marginals(len(known.sizes), 2),
            "epsilon": EPSILON,
            "delta": DELTA,
            "seed": seed,
            "megabytes": 80,
            "steps": 1000,
        }
        done = subprocess.run(
            [str(PEER_PYTHON), "-W", "ignore", str(PEER)],
            input=json.dumps(setting), text=True, check=True, stdout=subprocess.PIPE,
        )  # fmt: skip
        return np.load(result), float(json.loads(done.stdout)["seconds"])


def adult(options: argparse.Namespace) -> Iterator[Row]:
    """Fit Adult with ours and with the peer, and compare."""
    known = domain()
    train, test = frame(source.TRAIN), frame(source.TEST)
    if options.quick:
        train, test = train[:4000], test[:2000]
    codes, real_test = known.encode(train), tidy(test, known)
    real = scores(tidy(train, known), real_test, known)
    subject = f"Adult, {len(train)} rows, epsilon {EPSILON:g}, delta {DELTA:g}"
    for name, value in real.items():
        yield Row(subject=subject, name=f"AUROC of {name}, real rows", value=value)
    found: dict[str, list[dict[str, float]]] = {"sfumato": []} | ({} if options.quick else {"AIM of mbi": []})
    for seed in options.seeds:
        for who in found:
            made = ours(train, known) if who == "sfumato" else peers(codes, known, seed)
            if made is not None:
                rows = tidy(known.decode(made[0], seed=seed), known)
                values = {f"AUROC of {name}": value for name, value in scores(rows, real_test, known).items()}
                values["two-way marginals, mean total variation"] = marginal_error(
                    codes, made[0], known.sizes
                )
                values["time, s"] = made[1]
                found[who].append(values)
                print(who, seed, values, file=sys.stderr, flush=True)
    means = {
        who: {name: statistics.mean(each[name] for each in runs) for name in runs[0]}
        for who, runs in found.items()
        if runs
    }
    for who, values in means.items():
        for name, value in values.items():
            note = ", ".join(f"{each[name]:.4f}" for each in found[who])
            yield Row(subject=subject, name=f"{name}, {who}", value=value, note=note)
    yield from _bars(subject, real, means, bars=not options.quick)


def _bars(subject: str, real: dict[str, float], means: dict[str, Any], *, bars: bool) -> Iterator[Row]:
    mine, peer = means["sfumato"], means.get("AIM of mbi")
    for name, value in real.items():
        lost = value - mine[f"AUROC of {name}"]
        yield Row(subject=subject, name=f"AUROC of {name}, lost", value=lost, bar=0.03 if bars else None)
    if peer is None:
        if bars:  # a quick run does not ask it
            yield left_out(f"{subject}, AIM", f"mbi is not installed ({PEER_PYTHON}): make bench-peers")
        return
    for name in real:
        less = peer[f"AUROC of {name}"] - mine[f"AUROC of {name}"]
        yield Row(
            subject=subject, name=f"AUROC of {name}, below AIM", value=less, bar=0.005 if bars else None
        )
    name = "two-way marginals, mean total variation"
    yield Row(
        subject=subject, name=f"{name}, over AIM's", value=mine[name] / peer[name], bar=1.0 if bars else None
    )
    yield Row(
        subject=subject,
        name="time over AIM's",
        value=mine["time, s"] / peer["time, s"],
        bar=0.1 if bars else None,
    )
