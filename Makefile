# Two commands do everything on a machine that has Python (3.11 or newer) and make:
#   make demo    install, fetch the default target, answer a prompt
#   make test    install, lint, type check, and run every test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROMPT ?= Write a JSON list of five fruits, each with name, color and taste.

.DEFAULT_GOAL := help
.PHONY: help demo test unit check bench clean

help:
	@echo "make demo    install, fetch the default target and answer a prompt (PROMPT=...)"
	@echo "make test    install, check and run every test"
	@echo "make unit    the fast tests, without the real model"
	@echo "make check   ruff, mypy strict and the layout test"
	@echo "make bench   grimboost against transformers and other engines, turn by turn (BENCH=... options)"
	@echo "make clean   remove the virtual environment and caches of the tools"

$(READY): requirements-tested.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "grimboost needs Python 3.11 or newer; give one with 'make PYTHON=python3.11 ...'"; exit 1; }
	@echo "installing into $(VENV) (a minute or two, the first time only)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-tested.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

demo: $(READY)
	@echo "> $(PROMPT)"
	@$(BIN)/grimboost generate "$(PROMPT)"

test: check
	$(BIN)/pytest --durations=5

unit: $(READY)
	$(BIN)/pytest -m "not model and not slow"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_layout.py

bench: $(READY)
	$(BIN)/python -m bench.speed $(BENCH)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
