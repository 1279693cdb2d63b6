# SPDX-License-Identifier: Apache-2.0
"""What users get wrong at the command line, and what they are told: one paragraph, in its own words.

Each command is wrong in one way. It must end with exit code 2 and one paragraph on standard error that says
what is wrong and what to do, with no traceback, no argument of Python and no value of a row, and nothing is
charged.
"""

import json
import re

import pytest

from sfumato import Budget, Ledger, cli

PEOPLE = "client_id,age,income,city,default,note\n" + "".join(
    f"{i},{20 + i % 60},{1000 + 37 * (i % 60)},{'Rome' if i % 3 else 'Oslo'},{int(i % 60 > 30)},7310{i}x\n"
    for i in range(400)
)
TYPES = "--type client_id=integer --type age=number --type income=number --type default=integer"
STATS = f"stats people.csv {TYPES}"
FIT = f"fit people.csv {TYPES}"
AGE = "--bounds 0 100 --epsilon 1"
LOGISTIC = "logistic-regression --target default --label 0 --label 1 --clip-norm 1 --epsilon 1"
LINE = "--feature age --feature-bounds 0 99 --target-bounds 0 5000 --epsilon 1"
TRAIN = "train digits --model linear --epochs 1"
PATE = "pate breast-cancer --teachers 10"
VOTES = f"pate people.csv {TYPES} --public people.csv --epsilon 2 --delta 1e-5 --teachers 10"
INCOME = f"{VOTES} --target city --label Rome --label Oslo"

WRONG = {
    # what is not there
    "stats": "Missing argument 'SOURCE'",
    "stats people.csv": "Missing option '--epsilon'",
    "stats people.csv --epsilon 1": "name a statistic, such as count or mean",
    "stats people.csv average age --epsilon 1": "'average' is not one of",
    f"stats nofile.csv mean age {AGE}": "there is no file 'nofile.csv'",
    f"stats nofolder/*.parquet mean age {AGE}": "there is no file 'nofolder/*.parquet'",
    f"stats people.txt mean age {AGE}": "does not end in",
    f"stats . mean age {AGE}": "does not end in",
    f"stats empty.csv mean age {AGE}": "must name the columns",
    f"stats broken.parquet mean age {AGE}": "could not be opened",
    f"stats postgresql://localhost:1/none#people mean age {AGE}": "could not be opened",
    f"stats postgresql://localhost:1/none mean age {AGE}": "#",
    f"{STATS} mean nosuch {AGE}": "there is no column 'nosuch'",
    f"{STATS} mean Age {AGE}": "there is no column 'Age'",
    f"{STATS} mean age {AGE} --privacy-unit nobody": "there is no column 'nobody'",
    f"{STATS} mean --epsilon 1 --bounds 0 1": "mean needs the name of a column",
    f"{STATS} median --epsilon 1 --bounds 0 1": "median needs the name of a column",
    f"{STATS} histogram --epsilon 1": "histogram needs the name of a column",
    f"{STATS} keys --epsilon 1 --delta 1e-6": "keys needs the name of a column",
    # types
    f"stats people.csv mean age {AGE}": "--type age=number",
    f"stats people.csv --type age=numbr mean age {AGE}": "numbr",
    f"stats people.csv --type age mean age {AGE}": "--type",
    f"stats people.csv --type nosuch=number mean age {AGE}": "nosuch",
    f"{STATS} mean city {AGE}": "--type city=number",
    f"{STATS} sum note {AGE}": "--type note=number",
    f"{STATS} variance city {AGE}": "city",
    f"{STATS} histogram city --edge 0 --edge 1 --epsilon 1": "city",
    f"{STATS} histogram city --epsilon 1": "--category",
    f"{STATS} histogram default --category yes --epsilon 1": "default",
    f"{STATS} bounds city --epsilon 1": "city",
    # what an answer costs
    f"{STATS} mean age --bounds 0 100": "Missing option '--epsilon'",
    f"{STATS} mean age --bounds 0 100 --epsilon": "requires an argument",
    f"{STATS} mean age --bounds 0 100 --epsilon much": "not a valid float",
    f"{STATS} mean age --bounds 0 100 --epsilon 0": "--epsilon must be",
    f"{STATS} mean age --bounds 0 100 --epsilon -1": "--epsilon must be",
    f"{STATS} mean age --bounds 0 100 --epsilon nan": "--epsilon must be",
    f"{STATS} mean age --bounds 0 100 --epsilon inf": "--epsilon must be",
    f"{STATS} mean age {AGE} --delta 1": "--delta must be",
    f"{STATS} mean age {AGE} --delta -0.1": "--delta must be",
    f"{STATS} mean age {AGE} --delta 0.5": "--delta",
    f"{STATS} keys city --epsilon 1": "keys needs --delta",
    f"{STATS} mean age {AGE} --q 0.5": "takes no --q",
    f"{STATS} median age {AGE} --q 0.5": "takes no --q",
    f"{STATS} left-out-share --epsilon 1": "no row is left out",
    f"{STATS} left-out-share --privacy-unit client_id --epsilon 1 --most-rows 1": "above the contribution",
    f"{STATS} keys nosuch --epsilon 1 --delta 1e-6": "nosuch",
    f"{STATS} mean age {AGE} --relation cousins": "unknown relation 'cousins'",
    # bounds, quantiles, bins
    f"{STATS} mean age --epsilon 1": "mean needs --bounds",
    f"{STATS} sum age --epsilon 1": "sum needs --bounds",
    f"{STATS} mean age --bounds 100 0 --epsilon 1": "bounds",
    f"{STATS} mean age --bounds 5 5 --epsilon 1": "bounds",
    f"{STATS} mean age --bounds 0 inf --epsilon 1": "bounds",
    f"{STATS} mean age --bounds 0 nan --epsilon 1": "bounds",
    f"{STATS} mean age --bounds 0 --epsilon 1": "--bounds",
    f"{STATS} variance age --bounds 0 1e200 --epsilon 1": "bounds",
    f"{STATS} quantiles age --bounds 0 100 --epsilon 1": "quantiles needs --q",
    f"{STATS} quantiles age --bounds 0 100 --q 1.5 --epsilon 1": "--q",
    f"{STATS} histogram age --epsilon 1": "histogram needs --edge",
    f"{STATS} histogram age --edge 5 --epsilon 1": "--edge",
    f"{STATS} histogram age --edge 5 --edge 1 --epsilon 1": "--edge",
    f"{STATS} histogram age --edge 1 --edge 1 --epsilon 1": "--edge",
    f"{STATS} median age {AGE} --edge 1": "median takes no --edge",
    f"{STATS} count {AGE}": "count takes no --bounds",
    f"{STATS} mean age {AGE} --category Rome": "--category",
    f"{STATS} mean age {AGE} --contribution-bound 3": "--privacy-unit",
    f"{STATS} mean age {AGE} --contribution-bound 0 --privacy-unit client_id": "--contribution-bound must be",
    f"{STATS} mean age {AGE} --public-size 0 --population": "--public-size must be",
    # where it is charged
    f"{STATS} mean age {AGE} --ledger ledger.db": "give both --ledger and --account",
    f"{STATS} mean age {AGE} --account people": "give both --ledger and --account",
    f"{STATS} mean age {AGE} --ledger nowhere.db --account people": "there is no ledger at",
    f"{STATS} mean age {AGE} --ledger ledger.db --account nobody": "nobody",
    f"{STATS} mean age {AGE} --ledger ledger.db --account people": "--privacy-unit",
    f"{STATS} mean age --bounds 0 100 --epsilon 50 --ledger ledger.db --account people "
    "--privacy-unit client_id": "has a budget of",
    # models
    f"{FIT} ada-ssp --target income --clip-norm 1 --target-bounds 0 5000 --epsilon 1": "--delta",
    f"{FIT} tukey-em --target income --feature age --epsilon 1": "--delta",
    f"{FIT} {LOGISTIC} --feature city": "city",
    f"{FIT} {LOGISTIC} --feature nosuch": "nosuch",
    f"{FIT} {LOGISTIC} --feature default": "the --target is no --feature",
    f"{FIT} {LOGISTIC} --feature age --feature age": "is not repeated",
    f"{FIT} {LOGISTIC} --method guess": "--method",
    f"{FIT} logistic-regression --target default --epsilon 1": "--label",
    f"{FIT} {LOGISTIC} --label yes": "'yes' cannot be a value of column 'default'",
    f"{FIT} noisy-stats --target income --feature age --epsilon 1": "--feature-bounds",
    f"{FIT} noisy-stats --target city {LINE}": "city",
    f"{FIT} forest --target default --epsilon 1": "'forest' is not one of",
    f"{FIT} {LOGISTIC} --out nofolder/model.json": "nofolder",
    f"{FIT} {LOGISTIC} --relation replace-one": "lines of a CSV file",
    f"{FIT} {LOGISTIC} --out people.csv": "is the file of the data",
    f"{STATS} count --epsilon 1 --out people.csv": "is the file of the data",
    f"{STATS} histogram age --category {'9' * 400} --epsilon 1": "cannot be a value of column 'age'",
    # training and audits
    f"{TRAIN} --epsilon 1 --clip-norm -1": "--clip-norm must be",
    f"{TRAIN} --epsilon 0": "--epsilon must be",
    "train nosuch --epsilon 1": "nosuch",
    "train --epsilon 1": "pass what to train on",
    "train digits --model forest --epsilon 1": "forest",
    f"{TRAIN} --epsilon 1 --resume": "--folder",
    f"{TRAIN} --epsilon 1 --config misspelt.toml": "Did you mean 'epsilon'?",
    f"{TRAIN} --epsilon 1 --config nofile.toml": "nofile.toml",
    f"{TRAIN} --epsilon 1 --device tpu9": "unknown device 'tpu9'",
    f"{TRAIN} --epsilon 1 --private everything": "everything",
    # teachers
    "pate --epsilon 1": "pass what to learn",
    "pate digits": "--epsilon",
    "pate shakespeare --epsilon 1": "unknown data 'shakespeare'",
    "pate nosuch --epsilon 1": "unknown data 'nosuch'",
    "pate nofile.csv --epsilon 1": "there is no file 'nofile.csv'",
    f"{PATE} --epsilon 0": "--epsilon must be",
    f"{PATE} --epsilon nan": "--epsilon must be",
    f"{PATE} --epsilon 1e-4": "does not cover one query",
    f"{PATE} --epsilon 1 --delta 2": "--delta must be",
    "pate breast-cancer --epsilon 1 --teachers 0": "--teachers must be",
    f"{PATE} --epsilon 1 --teachers 5": "--teachers was given twice",
    f"{PATE} --epsilon 1 --epsilon=2": "--epsilon was given twice",
    f"{STATS} mean age {AGE} --epsilon 2": "--epsilon was given twice",
    f"{PATE} --epsilon 1 --queries 0": "--queries must be",
    f"{PATE} --epsilon 8 --queries 9999": "9999 queries cost more",
    f"{PATE} --epsilon 900 --queries 100": "there are 76",
    f"{PATE} --epsilon 1 --aggregator magic": "unknown --aggregator 'magic'",
    f"{PATE} --epsilon 1 --noise 0": "--noise must be",
    f"{PATE} --epsilon 1 --threshold 3": "for --aggregator confident",
    f"{PATE} --epsilon 1 --agreement 2": "agreement",
    f"{PATE} --epsilon 1 --agreement 0.9 --aggregator lnmax": "GNMax and ConfidentGNMax alone",
    f"{PATE} --epsilon 8 --workers 0": "--workers must be",
    f"{PATE} --epsilon 8 --audit 0": "--audit must be",
    f"{PATE} --epsilon 1 --target city": "--target is not for a public data set",
    f"{PATE} --epsilon 1 --ledger ledger.db": "give both --ledger and --account",
    f"{PATE} --epsilon 1 --ledger ledger.db --account people": "protects one 'client_id'",
    f"{PATE} --epsilon 1 --report people.csv/page.html": "--report",
    f"{PATE} --epsilon 1 --folder people.csv": "--folder",
    f"{VOTES} --label Rome --label Oslo": "--target",
    f"{VOTES} --target city": "--label",
    f"{VOTES} --target city --label Rome": "two or more different names",
    f"{VOTES} --target nosuch --label Rome --label Oslo": "there is no column 'nosuch'",
    f"{VOTES} --target age --classes 1": "classes",
    f"{INCOME} --feature nosuch": "there is no column 'nosuch'",
    f"{INCOME} --feature city": "'city' is used twice",
    f"{INCOME} --feature note": "note",
    f"{INCOME.replace('--public people.csv', '--public nofile.csv')}": "there is no file 'nofile.csv'",
    f"{INCOME} --privacy-unit nobody": "there is no column 'nobody'",
    f"{INCOME} --contribution-bound 0 --privacy-unit client_id": "--contribution-bound must be",
    f"{INCOME} --contribution-bound 3": "--privacy-unit",
    f"{INCOME} --noise 40 --ledger ledger.db --account people": "protects one 'client_id'",
    f"{INCOME.replace('--delta 1e-5', '')}": "pass --delta",
    # audits
    "audit nofolder": "there is no finished run",
    "audit .": "there is no finished run",
    # prices and plans
    "account": "Missing option '--delta'",
    "account --delta 1e-5": "give either --noise-multiplier or --event",
    'account --delta 1e-5 --event {"type":"MagicDpEvent"}': "MagicDpEvent",
    "account --delta 1e-5 --event nonsense": "not an event in JSON",
    "account --noise-multiplier 0 --delta 1e-5": "--noise-multiplier must be",
    "account --noise-multiplier 1 --delta 0.5": "--delta",
    "account --noise-multiplier 1 --delta 1e-5 --sampling-rate 2": "--sampling-rate must be",
    "account --noise-multiplier 1 --delta 1e-5 --steps 1.5": "not a valid int",
    "account --noise-multiplier 1 --delta 1e-5 --accountant magic": "'magic' is not one of",
    "plan --epsilon 3 --delta 1e-5": "--sampling-rate",
    "plan --epsilon 3 --sampling-rate 0.1 --steps 10": "Give --delta",
    "ledger nosuch": "No such command 'nosuch'",
    "ledger init people --privacy-unit client_id --epsilon 1 --delta 0": "people",
    "ledger init more --epsilon 1 --delta 0": "Missing option '--privacy-unit'",
    "ledger init more --privacy-unit client_id --epsilon -1 --delta 0": "--epsilon must be",
    "ledger show nobody": "nobody",
    "ledger grant people --epsilon -1 --reason none": "--epsilon",
    "ledger statement nobody": "nobody",
    "ledger verify --head nonsense": "a head looks like",
    "nosuch": "No such command 'nosuch'",
    "--nosuch": "No such option '--nosuch'",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder with a table, a ledger and files that are wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("SFUMATO_LEDGER", raising=False)
    (tmp_path / "people.csv").write_text(PEOPLE)
    (tmp_path / "people.txt").write_text(PEOPLE)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "broken.parquet").write_text("7310731 is no Parquet file")
    (tmp_path / "misspelt.toml").write_text("epsillon = 1.0\n")
    Ledger("ledger.db").open("people", privacy_unit="client_id", budget=Budget(epsilon=1, delta=1e-6))
    return tmp_path


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_is_told_in_one_paragraph_and_costs_nothing(line, place, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sfumato", *line.split()])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    said = " ".join(err.split())
    assert stop.value.code == 2 and out == "", said
    assert said.startswith("error: ") and "\n\n" not in err.strip()
    assert WRONG[line] in said
    assert not found_of_python(said)
    assert "7310" not in said and "Traceback" not in said
    assert Ledger("ledger.db").account("people").releases() == []


def found_of_python(said):
    """Return what of a message belongs to Python: arguments, their values, its words for things."""
    plain = re.sub(r"'[^']*'|`[^`]*`|--type \w+=\w+|COLUMN=TYPE", "", said)
    words = re.findall(r"(?<![\w-])\w+=\S|\b[a-z]+_[a-z_]+\b|\bNone\b|\bTrue\b|\bFalse\b|\w+Error\b", plain)
    return [word for word in words if word not in ("client_id", "public_size")]


def test_there_are_many(place):
    assert len(WRONG) >= 80
    assert json.loads(json.dumps(list(WRONG))) == list(WRONG)
