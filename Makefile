# `make` alone explains itself. Everything runs from .venv, which is made when it is first needed
# and made again when a pyproject.toml or constraints.txt changes.

PYTHON ?= python3
STATE ?= .state
BIN := .venv/bin
VENV := .venv/.installed
VENV_BENCH := .venv/.installed-bench
VENV_FUZZ := .venv/.installed-fuzz
JAVA := .venv/java_home
WITH_JAVA := JAVA_HOME="$$(cat $(JAVA))"
CHROMIUM := .venv/chromium
WITH_CHROMIUM := CHROMIUM="$$(cat $(CHROMIUM))"
TOOLS := .venv/tools_path
WITH_TOOLS := PATH="$$PATH:$$(cat $(TOOLS))"
# Nothing is compiled ahead: compiling everything takes 18 s; each module is compiled when first used.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# Four processes on two cores: many tests wait for a JVM, a disk, or a server that was broken. Six
# took longer (11:39 instead of 10:37).
PARALLEL := -n 4 --no-loadscope-reorder
QUICK := tests/actors tests/client tests/conformance -k "not postgres and not valkey and not model"
SOURCES := pyproject.toml client/pyproject.toml constraints.txt

# Some machines forbid Python to keep compiled files; every process of the tests would then compile
# all of its imports (collecting the tests: 29 s of CPU instead of 9).
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv run demo test test-all test-quick lint types imports pytest fuzz fuzz-control bench bench-intake bench-deliver bench-spark bench-observe bench-fleet bench-schedules bench-attacks torture screenshots clean

help: ## show this
	@echo 'forebay, from a clone:'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'A first look, in two terminals:'
	@echo '  make run'
	@echo '  seq 1000 | $(BIN)/forebay push hello - --socket $(STATE)/forebay.sock'
	@echo
	@echo 'PYTHON=python3.12 make venv picks another interpreter; it takes 3.11 or newer.'

venv: $(VENV) ## create .venv with everything that the other targets need

$(VENV): $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "forebay needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	       "Try: make PYTHON=python3.12 venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) --editable 'client[spark]' --editable '.[dev]'
	@touch $@

# The home of a Java that Spark can run on: found on the machine, or installed into .venv.
$(JAVA): $(VENV)
	@$(BIN)/python -m bench.java --install '$(PIP_INSTALL)' > $@

# A Chromium for the page's tests and screenshots; empty if it cannot be had: the tests skip then.
$(CHROMIUM): $(VENV)
	@$(BIN)/python -m bench.chromium --install > $@

# Prometheus' own checker for /metrics, and PgBouncer. Tests skip if one cannot be had.
$(TOOLS): $(VENV)
	@$(BIN)/python -m bench.debian .venv/tools promtool pgbouncer > $@

$(VENV_BENCH): $(VENV)
	$(PIP_INSTALL) --editable 'client[spark]' --editable '.[dev,bench]'
	@touch $@

$(VENV_FUZZ): $(VENV)
	$(PIP_INSTALL) --editable 'client[spark]' --editable '.[dev,fuzz]'
	@touch $@

run: venv ## run the daemon with its state in ./.state; make run ARGS="--config FILE"
	@mkdir -p $(STATE)
	@echo 'push to it with: seq 1000 | $(BIN)/forebay push hello - --socket $(STATE)/forebay.sock' >&2
	exec $(BIN)/forebay run --state-dir $(STATE) --socket $(STATE)/forebay.sock $(ARGS)

ifdef SERVERS
demo: venv
	@$(BIN)/python -m bench.demo.fleet $(ARGS)
else
demo: $(JAVA) ## a Spark pipeline out to a flaky destination; SERVERS=1: two hosts, Valkey, PostgreSQL
	@$(WITH_JAVA) $(BIN)/python -m bench.demo
endif

ifdef ARGS
test: pytest
else
test: venv $(JAVA) $(CHROMIUM) $(TOOLS) ## lint, types, imports and tests; ARGS='tests/actors -k spool -x' runs pytest alone, with these arguments
	@$(MAKE) --no-print-directory --jobs=4 lint types imports pytest
endif

test-quick: venv ## lint, types, imports, and the tests that need no server: about a minute
	@$(MAKE) --no-print-directory --jobs=4 lint types imports pytest ARGS='$(PARALLEL) $(QUICK)'

test-all: test ## make test, then the long tests: Spark clusters and Spark Connect, more crashes and fuzzing, five minutes of faults in a fleet
	@$(MAKE) --no-print-directory pytest ARGS='-m long'
	@FOREBAY_TEST_EFFORT=4 $(MAKE) --no-print-directory pytest ARGS='$(PARALLEL) tests/crash'
	@$(MAKE) --no-print-directory fuzz-control CASES=20000

lint: venv ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv ## mypy --strict
	$(BIN)/mypy

imports: venv ## import-linter: who may import whom
	$(BIN)/lint-imports --no-logo

pytest: $(JAVA) $(CHROMIUM) $(TOOLS)
	@$(WITH_JAVA) $(WITH_CHROMIUM) $(WITH_TOOLS) $(BIN)/python -m pytest $(or $(ARGS),$(PARALLEL))

torture: venv ## three daemons, a fault each second; make torture SECONDS=3600 [SEED=N]
	$(BIN)/python -m tests.fleet.torture --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

fuzz: $(VENV_FUZZ) ## coverage-guided fuzzing of the run codec
	$(BIN)/python -m tests.fuzz.run_codec

fuzz-control: venv ## odd requests to a live daemon; make fuzz-control CASES=200000 [SEED=N] [STORE=sqlite]
	$(BIN)/python -m tests.fuzz.control $(if $(REPLAY),--replay $(REPLAY),--cases $(or $(CASES),20000)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

bench-intake: $(VENV_BENCH) ## durable intake, compared with the disk and with Redis
	$(BIN)/python -m bench.intake

bench-deliver: $(VENV_BENCH) ## delivery: end to end, http, overflow, isolation, consumers
	$(BIN)/python -m bench.deliver

bench-spark: $(VENV_BENCH) $(JAVA) ## the Spark sink and source, compared with JDBC, Redis and Parquet
	@$(WITH_JAVA) $(BIN)/python -m bench.spark

bench-observe: $(VENV_BENCH) ## the cost of observation: /metrics and the page's data, under load
	$(BIN)/python -m bench.observe

bench-fleet: $(VENV_BENCH) ## a fleet: delivery through Valkey, overflow and keys in PostgreSQL
	$(BIN)/python -m bench.fleet $(ARGS)

bench-schedules: $(VENV_BENCH) ## scheduled items: ticks of the promoter with up to a million waiting
	$(BIN)/python -m bench.schedules $(ARGS)

bench-attacks: $(VENV_BENCH) ## the cost of hostile clients for the daemon and for a well-behaved client
	$(BIN)/python -m bench.attacks $(ARGS)

bench: bench-intake bench-deliver bench-spark bench-observe bench-fleet bench-schedules bench-attacks ## every benchmark

screenshots: $(CHROMIUM) ## render the page's pictures in docs/images from a daemon at work
	@$(WITH_CHROMIUM) $(BIN)/python -m bench.screenshots

clean: ## remove everything that make has created, .venv and ./.state included
	rm -rf .venv $(STATE) .bench .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -rf build dist client/build *.egg-info client/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
