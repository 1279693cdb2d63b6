# SPDX-License-Identifier: Apache-2.0
"""Installs without torch, and without tables: what works there, and what the rest says is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = """
import sys

hidden = {hidden!r}

class Hide:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hide)
"""

ANALYST = """
import numpy as np
import sfumato as sf
from sfumato import mechanisms, statistics
from sfumato.estimators import AdaSSP, LogisticRegression
from sfumato.testing import seeded

with open("people.csv", "w") as file:
    print("person,age,sick", *(f"{i},{20 + i % 50},{i % 3 == 0}" for i in range(600)), sep="\\n", file=file)
people = sf.open(
    "people",
    "people.csv",
    privacy_unit="person",
    types={"person": "number", "age": "number", "sick": "boolean"},
    budget=sf.Budget(epsilon=1000, delta=1e-5),
    ledger="ledger.db",
)
assert abs(people.count(epsilon=50).value - 600) < 10
assert abs(people.mean("age", bounds=(0, 100), epsilon=50).value - 44.5) < 5
assert abs(people.mean("age", bounds=(0, 100), epsilon=50, delta=1e-6).value - 44.5) < 5
assert people.histogram("age", edges=(0, 50, 100), epsilon=50).value.edges == (0, 50, 100)
model = LogisticRegression(epsilon=50, delta=0, clip_norm=100, classes=(False, True))
assert people.fit(model, target="sick", features=["age"]).coef_.shape == (1, 1)
assert people.spent().epsilon > 200
assert len(list(people.account.releases())) == 5
assert sf.Ledger("ledger.db").verify().overspent == ()
steps = sf.accounting.dp_sgd(noise_multiplier=1.1, sampling_rate=0.01, steps=9)
assert sf.price(steps, delta=1e-5).epsilon > 0
assert sf.plan(epsilon=3, public_size=60000, expected_batch_size=1024, epochs=1).noise_multiplier > 0

gaussian = mechanisms.Gaussian(stddev=1.0, sensitivity=1.0, relation=sf.Relation.ADD_REMOVE)
assert gaussian.release(0.0, generator=seeded(1)) == gaussian.release(0.0, generator=seeded(1))
assert statistics.mean([1.0, 2.0], bounds=(0, 3), epsilon=9, generator=seeded(0)).value == \\
    statistics.mean([1.0, 2.0], bounds=(0, 3), epsilon=9, generator=seeded(0)).value
rows = np.linspace(-1, 1, 50).reshape(-1, 1)
AdaSSP(epsilon=5, delta=1e-6, clip_norm=2, target_bounds=(-2, 2)).fit(rows, rows[:, 0])

from sfumato import audit
laplace = mechanisms.Laplace(scale=1.0, sensitivity=1.0, relation=sf.Relation.ADD_REMOVE)
assert audit.replay(lambda data, generator: laplace.release(sum(data), generator=generator), [1.0], [])
"""


def ran_without(*hidden: str, script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a process where imports fail as they do where packages are not installed."""
    return subprocess.run(
        [sys.executable, "-c", HIDDEN.format(hidden=hidden) + script],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_an_analyst_needs_no_torch(tmp_path):
    ran = ran_without("torch", script=ANALYST, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr


COMMANDS = """
import io, shlex
from contextlib import redirect_stdout
import sfumato.cli

def run(line):
    sys.argv = ["sfumato", *shlex.split(line)]
    with redirect_stdout(io.StringIO()) as shown:
        try:
            sfumato.cli.main()
        except SystemExit as stop:
            return stop.code or 0, shown.getvalue()

open("a.csv", "w").write("person,age\\n1,20\\n2,30\\n")
table = "a.csv --epsilon 1 --type person=number --type age=number --privacy-unit person"
for line in (
    "account --noise-multiplier 1.1 --sampling-rate 0.01 --steps 10 --delta 1e-5",
    "plan --epsilon 3 --public-size 60000 --expected-batch-size 1024 --epochs 1",
    "ledger init people --privacy-unit person --epsilon 3 --delta 1e-6 --ledger l.db",
    "ledger show people --ledger l.db",
    f"stats {table.replace('a.csv', 'a.csv mean age')} --bounds 0 100 --ledger l.db --account people",
    "stats --help", "fit --help", "train --help", "audit --help",
):
    code, shown = run(line)
    assert code == 0, (line, code, shown)
for line in ("train digits --epsilon 1", "audit ."):
    assert run(line)[0] == 2, line
"""


def test_the_commands_of_an_analyst_need_no_torch(tmp_path):
    ran = ran_without("torch", script=COMMANDS, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert 'pip install -c constraints.txt ".[torch]"' in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr


NEEDED = """
import sfumato as sf
from sfumato.errors import MissingDependencyError, SfumatoError

def check(what, needs):
    try:
        needs()
    except MissingDependencyError as error:
        assert isinstance(error, SfumatoError) and isinstance(error, ImportError)
        assert 'pip install -c constraints.txt ".[torch]"' in str(error), what
    else:
        raise AssertionError(what)

def dp_sgd():
    from sfumato.estimators import LogisticRegression
    LogisticRegression(
        method="dp-sgd", epsilon=1, delta=1e-5, clip_norm=1, classes=(0, 1), public_size=2
    ).fit([[0.0], [1.0]], [0, 1])

def submodule():
    import sfumato.training.privacy.clipping

check("train", lambda: sf.train)
check("Trainer", lambda: sf.Trainer)
check("training", lambda: sf.training)
check("labels", lambda: sf.labels)
check("Canaries", lambda: sf.audit.Canaries)
check("attack", lambda: sf.audit.attack)
check("invert", lambda: sf.audit.invert)
check("GridGaussian", lambda: sf.mechanisms.GridGaussian)
check("FastGenerator", lambda: sf.mechanisms.FastGenerator())
check("load", lambda: sf.datasets.load("digits"))
check("dp-sgd", dp_sgd)
check("submodule", submodule)
assert sf.datasets.names()[0] == "digits"
"""


def test_what_needs_torch_says_what_to_install(tmp_path):
    ran = ran_without("torch", script=NEEDED, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("script", ["import torch", "import torch.nn"])
def test_the_process_has_no_torch_indeed(script, tmp_path):
    ran = ran_without("torch", script=script, folder=tmp_path)
    assert "No module named 'torch" in ran.stderr


CORE = """
import numpy as np
import sfumato as sf
from sfumato import statistics
from sfumato.errors import MissingDependencyError
from sfumato.estimators import LogisticRegression

account = sf.Ledger("ledger.db").open("a", privacy_unit="row", budget=sf.Budget(epsilon=100, delta=1e-6))
found = statistics.mean([20.0, 30.0], bounds=(0, 100), epsilon=1, account=account)
assert '"value"' in found.to_json()
LogisticRegression(epsilon=1, delta=0, clip_norm=1, classes=(0, 1)).fit(np.eye(2), [0, 1])
budget = sf.Budget(epsilon=1, delta=0)
for extra, use in {
    "[tables]": lambda: sf.open("b", "b.csv", privacy_unit="row", budget=budget, ledger="ledger.db"),
    "pandas": found.to_pandas,
}.items():
    try:
        use()
    except MissingDependencyError as error:
        assert "pip install" in str(error) and extra in str(error), error
    else:
        raise AssertionError(extra)
"""


def test_the_core_works_without_any_extra(tmp_path):
    extras = ("torch", "ibis", "duckdb", "pandas", "pyarrow", "sqlglot", "psycopg")
    ran = ran_without(*extras, script=CORE, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
