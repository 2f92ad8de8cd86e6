# Everything a developer or an operator runs. `make help` lists it.

PYTHON ?= python3
VENV   ?= .venv
HOST   ?= 127.0.0.1
PORT   ?= 8000
# CUDA major version whose libraries to install (12 or 13); empty: CPU only. By default 13, which
# Warp is built with, where there is an NVIDIA GPU.
CUDA   ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo 13)
# Test processes.
JOBS   ?= 2
# How long `make fuzz` goes on with each of its searches.
FUZZ_SECONDS ?= 60
# How long `make soak` goes on.
SOAK_SECONDS ?= 120

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)

# One stamp a step. Another interpreter, other CUDA libraries or changed requirements miss their
# stamp and redo the step; a change of the code alone does not, since the install is editable.
VENV_STAMP    := $(VENV)/.python-$(PYTHON_VERSION)
RUNTIME_STAMP := $(VENV)/.runtime$(CUDA)
DEV_STAMP     := $(VENV)/.dev
FUZZ_STAMP    := $(VENV)/.fuzz
REQUIREMENTS  := pyproject.toml service/pyproject.toml clients/python/pyproject.toml VERSION constraints.txt

.DEFAULT_GOAL := help
.PHONY: help serve demo test test-slow test-all-pythons lint bench bench-service soak fuzz clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(RUNTIME_STAMP)  ## install and start the server on HOST:PORT
	$(BIN)/segops-service serve --host $(HOST) --port $(PORT)

demo: $(DEV_STAMP)  ## start a server, run the molecules example against it, stop it
	$(BIN)/python examples/molecules.py --serve

test: $(DEV_STAMP)  ## run the tests
	$(BIN)/python -m pytest -n $(JOBS)

test-slow: $(DEV_STAMP)  ## run the tests that take long
	$(BIN)/python -m pytest -n $(JOBS) -m slow

test-all-pythons:  ## run the tests on every supported Python, each in a venv of its own
	set -e; for version in 3.11 3.12 3.13; do \
	    $(MAKE) test PYTHON=python$$version VENV=$(VENV)-$$version; \
	done

lint: $(DEV_STAMP)  ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(DEV_STAMP)  ## run the benchmarks
	$(BIN)/python -m benchmarks

bench-service: $(DEV_STAMP)  ## measure the service
	$(BIN)/python -m benchmarks.service

soak: $(DEV_STAMP)  ## load the service for SOAK_SECONDS, with faults, and check every answer
	$(BIN)/python -m benchmarks.soak --seconds $(SOAK_SECONDS)

fuzz: $(FUZZ_STAMP)  ## look for input that breaks the service, FUZZ_SECONDS for each search
	$(BIN)/python -m tests.fuzz $(FUZZ_SECONDS)

clean:  ## remove the venvs, builds and caches
	rm -rf $(VENV) $(VENV)-3.* dist build .mypy_cache .pytest_cache .ruff_cache .fuzz .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV_STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "segops needs Python 3.11 or newer; PYTHON=$(PYTHON) is $(or $(PYTHON_VERSION),not found)." >&2; \
	    echo "Name another one, for example: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(RUNTIME_STAMP): $(VENV_STAMP) $(REQUIREMENTS)
	$(PIP) --editable '.$(CUDA:%=[cuda%])' --editable clients/python --editable service
	touch $@

$(FUZZ_STAMP): $(RUNTIME_STAMP)
	$(PIP) --editable '.[fuzz]'
	touch $@

$(DEV_STAMP): $(RUNTIME_STAMP)
	$(PIP) --editable '.[dev]'
	touch $@
