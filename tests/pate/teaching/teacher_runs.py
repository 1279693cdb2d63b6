# SPDX-License-Identifier: Apache-2.0
"""Teachers in a process of their own, to kill and to start several of: `python teacher_runs.py '{...}'`."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.base import BaseEstimator
from sklearn.tree import DecisionTreeClassifier

from sfumato import Ledger
from sfumato.errors import SfumatoError
from sfumato.pate import GNMax, Partition, label, train_teachers

TEACHERS = 12


class Slow(BaseEstimator):
    """A tree that ends the process at one teacher, and reports each fit."""

    def __init__(self, log=None, die_after=None, random_state=None):
        self.log, self.die_after, self.random_state = log, die_after, random_state

    def fit(self, X, y):
        log = Path(self.log)
        with log.open("a") as file:
            file.write("fit\n")
        if self.die_after is not None and len(log.read_text().splitlines()) > self.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        self.tree_ = DecisionTreeClassifier(random_state=self.random_state).fit(X, y)
        return self

    def predict(self, X):
        return self.tree_.predict(X)


class Unchanged(Slow):
    """The same settings, whether it dies or not: only then is a cache of the killed process used."""

    def get_params(self, deep=True):
        return {"random_state": self.random_state}

    def set_params(self, **seeds):
        self.random_state = seeds["random_state"]
        return self

    def __sklearn_clone__(self):
        return Unchanged(self.log, self.die_after, self.random_state)


def rows(seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(400, 3))
    return x, (x[:, 0] + 0.3 * generator.normal(size=400) > 0).astype(int), generator.normal(size=(30, 3))


def killed(asked):
    x, y, queries = rows()
    partition = Partition(teachers=(TEACHERS,), key=bytes(32))
    estimator = Unchanged(asked["log"], asked.get("die_after"))
    ensemble = train_teachers(
        estimator, x, y, partition=partition, classes=2, folder=asked["folder"], progress=False
    )
    np.save(asked["out"], ensemble.counts(queries))


def several(asked):
    """Train on two ranks; write what each of them counts, and the errors of those that disagree."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x, y, queries = rows()
    partition = Partition(teachers=(5, 6), key=bytes(32))

    def counts(features, asked_queries, weights=None, key=partition):
        with train_teachers(
            DecisionTreeClassifier(), features, y, partition=key, classes=2, units=np.arange(400) // 2
        ) as ensemble:
            assert len(list(ensemble.predictions(queries))) == len(ensemble.numbers)
            return ensemble.counts(asked_queries, weights)

    found = {"plain": counts(x, queries), "weighted": counts(x, queries, np.arange(11) + 0.5)}
    errors = []
    for wrong in (
        lambda: counts(x + rank, queries),
        lambda: counts(x, queries + rank),
        lambda: counts(x, queries, key=Partition.draw((5, 6))),
    ):
        try:
            wrong()
        except SfumatoError as error:
            errors.append(type(error).__name__)
    np.savez(Path(asked["out"]) / f"rank{rank}.npz", errors=errors, **found)
    dist.destroy_process_group()


def labels(asked):
    """Run a labeling job on two ranks, which pays from one account and writes one folder."""
    dist.init_process_group("gloo")
    x, y, queries = rows()
    place = Path(asked["out"])
    account = Ledger(place / "ledger.db", create=False).account("a")
    terms = {"teachers": 11, "epsilon": asked["epsilon"], "delta": 1e-5, "aggregator": GNMax(stddev=0.5)}
    error = ""
    try:
        found = label(
            DecisionTreeClassifier(),
            x,
            y,
            public=queries,
            classes=2,
            account=account,
            purpose="answers of two ranks",
            folder=place / "job",
            progress=False,
            **terms,
        ).classes
    except SfumatoError as raised:
        found, error = np.zeros(0), type(raised).__name__
    np.savez(place / f"rank{dist.get_rank()}.npz", classes=found, error=error)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = json.loads(sys.argv[1])
    {"several": several, "killed": killed, "labels": labels}[asked["what"]](asked)
