# Needs python3 (3.11 or newer, with venv), make and a package index; nothing else.
PYTHON ?= python3
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --dist worksteal

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.sfumato-setup
SPARK := $(VENV)/.sfumato-spark
TORCH := torch==2.13.0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
FILES :=
PEERS := .venv-peers
AIM := .venv-aim

# Otherwise pyright asks the network for its newest version, and mkdocs-material prints an advertisement.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-spark check types bench-quick bench bench-peers audit docs links clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Build .venv with pinned versions (does nothing when it is up to date)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make PYTHON=python3.12 setup")'
	@test -x $(BIN)/pip || { echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing $(TORCH)"
	@$(PIP) "$(TORCH)"
	@echo "Installing sfumato and its development tools (a minute or two)"
	@$(PIP) -c constraints.txt -e ".[dev]"
	@touch $@

demo: setup ## Train a private network on digits, with a ledger and a report
	@$(BIN)/python docs/examples/train_digits.py

test: setup ## The whole default suite
	$(BIN)/python -m pytest $(PARALLEL)

# -rs says which tests were skipped, and why: those of Spark, where it was not installed.
test-slow: setup ## The tests that take minutes
	$(BIN)/python -m pytest $(PARALLEL) -m slow -rs

test-spark: setup $(SPARK) ## The tests on a local Spark (needs Java 17 or later)
	@java -version >/dev/null 2>&1 || test -n "$$JAVA_HOME" || { echo "Spark needs Java 17 or later: install one, or set JAVA_HOME"; exit 1; }
	$(BIN)/python -m pytest -m slow -rs tests/statistics/sources/test_tables_spark.py tests/statistics/test_poison_spark.py tests/queries/test_engines.py

$(SPARK): $(STAMP)
	@echo "Installing Spark (half a gigabyte)"
	@$(PIP) -c constraints.txt -e ".[dev,spark]"
	@touch $@

# Types are checked beside the tests: pyright takes a minute on one core, and tests leave cores idle at times.
check: setup ## What CI runs: format, lint, import contract, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory -j 2 types test

types: setup
	$(BIN)/pyright

bench-quick: setup ## Every benchmark on small sizes, then one table (FILES="noise ledger" for some)
	$(BIN)/python benchmarks/all.py --quick $(FILES)

bench: setup ## The same in full: hours
	$(BIN)/python benchmarks/all.py $(FILES)

bench-peers: ## Build .venv-peers and .venv-aim: diffprivlib, OpenDP and mbi, for the benchmarks
	@test -x $(PEERS)/bin/pip || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt
	@test -x $(AIM)/bin/pip || $(PYTHON) -m venv $(AIM)
	@$(AIM)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements-aim.txt

audit: setup ## Attack every mechanism, statistic and trainer, and renew the tables of docs/audit.md (minutes)
	$(BIN)/python benchmarks/audit.py --only claims --page docs/audit.md
	$(BIN)/python benchmarks/audit.py --only power --page docs/audit.md

docs: setup ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

links: setup ## Check the links from the documentation to other sites (needs the network)
	$(BIN)/python docs/check_links.py

clean: ## Remove caches and built documentation (the environment stays)
	rm -rf site build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
