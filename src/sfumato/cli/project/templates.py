# SPDX-License-Identifier: Apache-2.0
"""The texts of a new project: its settings, a first script, a made-up table and what git must not keep.

The table is computed, not drawn: it is the same in every project, and nobody is in it.
"""

import csv
import io
import json
from collections.abc import Sequence

__all__ = [
    "COLUMNS",
    "EXAMPLE",
    "IGNORED",
    "SCRIPT",
    "example_table",
    "script",
    "settings_text",
    "with_lines",
]

SCRIPT = "first_release.py"
EXAMPLE = "example.csv"
COLUMNS = ("age", "income", "city")  # of the made-up table, beside the privacy unit
IGNORED = ("*.db", "*.db-*", "*.csv", "*.parquet", "*.npz", "runs/")

_PEOPLE = 1000
_CITIES = ("Lima", "Oslo", "Rome")

_SETTINGS = """\
# The settings of this project. `sfumato` reads them when it runs in this folder.
# What a command line says goes before them, and so does the variable SFUMATO_LEDGER.

# Where the ledger is: the record of everything that was published, and of what it cost.
ledger = {ledger}

# The account that releases are charged to, and whom it protects: the column of the data that says whose a row
# is. `sfumato ledger show` lists the accounts. Another unit needs another account.
account = {name}
privacy_unit = {unit}

# The data. To use your own, open an account for it first (`sfumato ledger init --help`): what the example has
# spent stays spent. Then change account, privacy_unit, data, types and bounds here.
data = {data}

# The types of columns: number, integer, text, boolean, date or timestamp. A CSV file has none of its own: a
# column that is not named here is text.
[types]
age = "number"
income = "number"

# Public bounds of columns, [lower, upper], chosen without looking at the data. Values outside are clipped.
[bounds]
age = [18, 100]
income = [0, 6000]
"""

_FIRST_SCRIPT = '''\
"""A first release: the mean age of the made-up people in {data}, and how many live in each city.

Each run publishes new numbers, and each time the account is charged. When its budget is spent, the ledger
refuses before the data is read.
"""

import tomllib
from pathlib import Path

import sfumato as sf

HERE = Path(__file__).parent
settings = tomllib.loads((HERE / "sfumato.toml").read_text(encoding="utf-8"))

people = sf.open(
    settings["account"],
    HERE / settings["data"],
    privacy_unit=settings["privacy_unit"],
    types=settings["types"],
    ledger={ledger},
)

bounds = tuple(settings["bounds"]["age"])
age = people.mean("age", bounds=bounds, epsilon={epsilon})
cities = people.histogram("city", categories={cities}, epsilon={epsilon})

print(f"mean age: {{age.value:.1f}}")
for city, count in zip(cities.value.categories, cities.value.counts, strict=True):
    print(f"people in {{city}}: {{count}}")
print(f"spent so far: {{people.spent()}}")
print(f"budget: {{people.budget}}")
'''


def settings_text(*, ledger: str, name: str, unit: str) -> str:
    """Return the settings file of a project."""
    quoted = {"ledger": _quoted(ledger), "name": _quoted(name), "unit": _quoted(unit)}
    return _SETTINGS.format(**quoted, data=_quoted(EXAMPLE))


def script(*, ledger: str, epsilon: float) -> str:
    """Return the first script, which spends a tenth of the budget for each of its two releases."""
    place = 'settings["ledger"]' if "://" in ledger else 'HERE / settings["ledger"]'
    return _FIRST_SCRIPT.format(
        data=EXAMPLE, ledger=place, epsilon=f"{epsilon / 10:.3g}", cities=_listed(_CITIES)
    )


def example_table(unit: str) -> str:
    """Return a CSV table of people who do not exist, one row for each."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([unit, *COLUMNS])
    for i in range(_PEOPLE):
        age = 18 + i * 7 % 31 + i * 11 % 37  # sums of two: values in the middle are the most frequent
        income = 900 + 20 * age + i * 13 % 1501
        table.writerow([i + 1, age, income, _CITIES[i * i % 7 % 3]])
    return text.getvalue()


def with_lines(text: str) -> tuple[str, list[str]]:
    """Return the text of a .gitignore with the lines that keep private files out of git, and those added."""
    known = {line.strip() for line in text.splitlines()}
    added = [line for line in IGNORED if line not in known]
    if not added:
        return text, []
    before = text if not text or text.endswith("\n") else f"{text}\n"
    return "\n".join([f"{before}# Budgets, private data and runs do not belong in git.", *added, ""]), added


def _quoted(text: str) -> str:
    """Return a text as TOML writes it: like JSON, for a line of visible characters."""
    return json.dumps(text, ensure_ascii=False)


def _listed(words: Sequence[str]) -> str:
    return f"[{', '.join(_quoted(word) for word in words)}]"
