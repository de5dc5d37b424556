# Two commands on a fresh machine: `make demo` and `make test`. Everything else is for those who change cloze.
# `make test` takes ten minutes on two cores, with 25 examples of each property; `make test-rest` runs what it leaves out and
# the properties with 100 examples, `make test-all` both in one session.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Test processes at a time; a file's tests stay in one. One that crashes ends the whole: begun again it would crash again.
JOBS ?= 2
INSTALLED := $(VENV)/.installed
PACKAGES := pipeline data_prep models cluster

.PHONY: install demo test test-rest test-all golden lint format bench chaos clean

install: $(INSTALLED)

$(INSTALLED): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	# Where PYTHONDONTWRITEBYTECODE is set, as in many containers, every process would compile these packages anew.
	$(BIN)/python -m compileall -q $(PACKAGES)
	touch $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/cloze demo $(ARGS)

# Every process would compile what it imports anew where PYTHONDONTWRITEBYTECODE is set.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile \
	--no-loadscope-reorder --max-worker-restart 0

test: $(INSTALLED)
	$(PYTEST) -m "not system" $(ARGS)

test-rest: $(INSTALLED)
	$(PYTEST) -m "system or hypothesis" --hypothesis-profile full $(ARGS)

test-all: $(INSTALLED)
	$(PYTEST) --hypothesis-profile full $(ARGS)

# What is made of small inputs, beside the recorded values. ARGS=--write records it, ARGS=documents takes one kind.
golden: $(INSTALLED)
	$(BIN)/python -m tests.golden $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/pip install --quiet --requirement requirements-bench.txt --constraint requirements.lock
	$(BIN)/pip install --quiet --no-deps --requirement requirements-bench-alone.txt
	$(BIN)/python -m tests.benchmarks $(ARGS)

# Faults on real processes, and the table of docs/chaos.md. ARGS="--only NAME" takes one of them.
chaos: $(INSTALLED)
	$(BIN)/python -m tests.chaos $(ARGS)

clean:
	rm -rf $(VENV) demo .pytest_cache .ruff_cache .hypothesis *.egg-info
