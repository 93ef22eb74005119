# What people and CI run. `make` alone lists it; CONTRIBUTING.md has the rules behind it.

VENV := .venv
EXPORT_VENV := .venv-export
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST_ARGS ?=

# A command of that name may exist and still not run (version managers leave such shims behind), so
# each candidate is tried. PYTHON=... chooses one by hand.
PYTHON ?=
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python)
SUPPORTED := import sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))

.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-export check fmt fmt-check lint types clean

help:
	@echo "make demo         three agents on this PC split a small model and answer (ONCE=1: then exit)"
	@echo "make test         the tests that CI runs (PYTEST_ARGS='-m \"not slow\"' for the quick ones)"
	@echo "make test-export  the tests of the export of checkpoints, with torch in $(EXPORT_VENV)"
	@echo "make check        format, lint, types and all tests: what CI runs"
	@echo "make fmt          format the code and mend what the linter can"
	@echo "make clean        remove the environment, caches and what the demo left"

demo: $(VENV)/.installed
	@$(BIN)/python tools/demo.py $(if $(ONCE),--once)

test: $(VENV)/.installed-dev
	@PYTHONASYNCIODEBUG=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

# The tests that need torch; `make test` leaves them out, as its environment has none.
test-export: $(EXPORT_VENV)/.installed
	@$(EXPORT_VENV)/bin/python -m pytest $(PYTEST_ARGS) tests/export

check: fmt-check lint types test-export test

fmt: $(VENV)/.installed-dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

fmt-check: $(VENV)/.installed-dev
	@echo "== format"
	@$(BIN)/ruff format --check .

lint: $(VENV)/.installed-dev
	@echo "== lint"
	@$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	@echo "== types"
	@$(BIN)/mypy

clean:
	@rm -rf $(VENV) $(EXPORT_VENV) .demo dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@find . -name '*.egg-info' -maxdepth 2 -type d -prune -exec rm -rf {} +
	@echo "Clean."

# An environment whose making was cut short, or that another tool made, may lack pip.
ENSURE_PIP := $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null

# The stamps are younger than pyproject.toml as long as what it asks for is installed.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing meshinfer and what it needs into $(VENV) (about a minute; no torch) ..."
	@$(ENSURE_PIP)
	@$(PIP) install --editable .
	@touch $@
	@echo "Installed."

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing meshinfer with the tools of its developers into $(VENV) (about a minute) ..."
	@$(ENSURE_PIP)
	@$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/.installed
	@echo "Installed."

$(EXPORT_VENV)/.installed: pyproject.toml tools/export-constraints.txt | $(BIN)/python
	@echo "Installing the export extra with a CPU build of torch into $(EXPORT_VENV) (2 GB) ..."
	@$(BIN)/python -m venv --clear $(EXPORT_VENV)
	@$(EXPORT_VENV)/bin/python -m pip --disable-pip-version-check --quiet install \
	    --constraint tools/export-constraints.txt --editable '.[dev,export]'
	@touch $@
	@echo "Installed."

$(BIN)/python:
	@for candidate in $(CANDIDATES); do \
	    if "$$candidate" -c '$(SUPPORTED)' >/dev/null 2>&1; then \
	        echo "Making the environment $(VENV) with $$candidate ..."; \
	        exec "$$candidate" -m venv --clear $(VENV); \
	    fi; \
	done; \
	echo "No Python 3.11 to 3.13 with venv was found (tried: $(CANDIDATES))." >&2; \
	echo "Install one (Debian, Ubuntu: apt install python3 python3-venv)," >&2; \
	echo "or name it: make PYTHON=/path/to/python3.12" >&2; \
	exit 1
