# The front door: `make help` lists what to type.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
PY := .venv/bin/python
CHAOS_SEEDS ?= 1 2

# Two at a time, each with servers of its own: half of their time is waiting.
SIDE_BY_SIDE ?= -n 2 --dist loadfile
CHAOS_REPORT ?= .lsb/chaos
BENCH_REPORTS ?= .lsb
SOAK_MINUTES ?= 65
SOAK_REPORT ?= .lsb/soak

# Progress is shown also where it goes into a file.
export PYTHONUNBUFFERED := 1
# Compiled once, not by each of the hundreds of processes that the tests start: half of a start would be spent on it.
unexport PYTHONDONTWRITEBYTECODE

comma := ,
say = @printf '\n== %s\n' "$(1)"

.PHONY: help setup demo up down status env dashboards quick test test-compose compose-needs test-chaos soak simulation mutations fuzz bench bench-engine bench-kafka bench-spark check docs format lock clean

help: ## this list
	@printf 'LocalStreamBuffer: what to type\n\n'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|'
	@printf '\n  make demo EVENTS=path/to/events.json [AS_RECORDED=1]   the same on your own recording\n  make demo RUNNER=spark, make demo MOVE=1               in Spark; moved to it in the middle\n'

setup: .venv/.ready ## the Python environment, in .venv (quick when nothing changed)

.venv/.installed: requirements/dev.txt
	$(call say,Python packages into .venv (about two minutes the first time))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed as '$(PYTHON)'. Install it, or name it: make setup PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 2; }
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@$(PY) -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

# Compat mode puts the project's root on the path, so that a new package needs no new install.
.venv/.ready: .venv/.installed pyproject.toml requirements/services.in requirements/runtime.in
	$(call say,The project itself into .venv)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index \
	  --config-settings editable_mode=compat --editable .
	@$(PY) -c 'import broker.wire.bulk, joiner' # compiles their loops, for every process that follows
	@touch $@

demo: setup ## the whole pipeline: start, replay, join, verify, verdict (EVENTS=path, RUNNER=spark, MOVE=1)
	@EVENTS="$(EVENTS)" AS_RECORDED="$(AS_RECORDED)" RUNNER="$(RUNNER)" MOVE="$(MOVE)" $(PY) -m demo

up: setup ## start Kafka, the MQTT broker and InfluxDB on this machine
	@$(PY) -m broker.stack up

down: ## stop them; the data stays
	@if [ -x $(PY) ]; then $(PY) -m broker.stack down; else echo 'nothing was set up, so nothing runs'; fi

status: setup ## what runs where
	@$(PY) -m broker.stack status || [ $$? -eq 1 ] # something is not running: an answer, no error of make's

env: ## passwords and tokens for docker-compose.yml, made once at random
	@$(PYTHON) -m broker.compose.environment

dashboards: setup ## write grafana/dashboards anew, from grafana/generate.py
	@$(PY) -m grafana.generate

quick: setup check ## for everyday work: style, types, unit and property tests, under three minutes
	@$(PY) -m pytest -q $(SIDE_BY_SIDE) tests/unit tests/property
	@printf '\nPASSED: checks, unit and property tests are fine. What decides is make test.\n'

# What needs servers is one run, and what takes minutes comes first: so neither of the two ends long before the other.
test: setup check ## everything that must pass: checks, all tests, a few chaos seeds
	$(call say,Tests of rules and logic)
	@$(PY) -m pytest $(SIDE_BY_SIDE) tests/unit tests/property tests/simulation
	$(call say,Tests on real servers$(comma) in Spark and with crashes at seeded moments (seeds $(CHAOS_SEEDS)); the first run fetches the servers)
	@$(call chaos,$(CHAOS_SEEDS)) tests/spark tests/integration $(SIDE_BY_SIDE) --no-loadscope-reorder
	@printf '\nPASSED: checks, tests and crashes are all fine.\n'

test-compose: compose-needs setup ## docker-compose.yml with stand-in images: up, kills, alerts, Spark, tester, fifteen minutes; needs Docker and debootstrap
	@$(PY) -m pytest tests/compose -rs -v

# Before anything is built.
compose-needs:
	@$(PYTHON) -m tests.compose.needs

test-chaos: setup ## many more crashes and limits, about an hour: make test-chaos CHAOS_SEEDS="7-12" CHAOS_REPORT=path
	@LSB_CHAOS_FULL=1 LSB_CHAOS_REPORT="$(CHAOS_REPORT)" \
	  $(call chaos,$(if $(filter-out file,$(origin CHAOS_SEEDS)),$(CHAOS_SEEDS),1-22))

soak: setup ## an hour with a kill every minute: make soak SOAK_MINUTES=65 SOAK_REPORT=path
	@$(PY) -m tests.chaos.soak --minutes $(SOAK_MINUTES) --report "$(SOAK_REPORT)"

simulation: setup ## ten thousand histories of each kind of runner over a broker in memory
	@$(PY) -m tests.simulation --seeds 1-10000 --jobs 2
	@$(PY) -m tests.simulation --seeds 1-10000 --jobs 2 --spark

fuzz: setup ## a million cases of hostile input for all that reads bytes from outside, about 15 minutes
	@$(PY) -m tests.fuzz --cases 1000000 --seed 1 --jobs 2

mutations: setup ## break each rule of the join once, and see that a test notices; its laws with 1,000 examples, about 15 minutes
	@LSB_PROPERTY_EXAMPLES=1000 $(PY) -m pytest $(SIDE_BY_SIDE) tests/property
	@$(PY) -m tests.property.mutations

# Tests in tests/chaos read their seeds from the environment; without any, one run is made.
chaos = LSB_CHAOS_SEEDS="$(strip $(1))" $(PY) -m pytest tests/chaos

bench: setup ## beside windowed joins and other engines, end to end, an hour: make bench BENCH="--resume"; make bench QUICK=1, minutes
	@$(PY) -m bench.contest $(if $(QUICK),--quick --results .lsb/bench/results --page .lsb/bench/benchmarks.md --plots .lsb/bench/plots) $(BENCH)

bench-engine: setup ## the join in memory beside pandas, polars, DuckDB, about ten minutes: make bench-engine BENCH_REPORTS=folder
	@$(PY) -m bench.engine --report "$(BENCH_REPORTS)/bench_engine"
	@$(PY) -m bench.tables --report "$(BENCH_REPORTS)/bench_tables"

bench-kafka: setup ## throughput and latency beside a raw pass-through, recovery, moves, metrics, about 30 minutes: make bench-kafka BENCH_REPORTS=folder
	@$(PY) -m bench.kafka --report "$(BENCH_REPORTS)/bench_kafka"
	@$(PY) -m bench.latency --report "$(BENCH_REPORTS)/bench_latency"
	@$(PY) -m bench.recovery --report "$(BENCH_REPORTS)/bench_recovery"
	@$(PY) -m bench.moving --report "$(BENCH_REPORTS)/bench_moving"
	@$(PY) -m bench.metrics --report "$(BENCH_REPORTS)/bench_metrics"

bench-spark: setup ## the state of the stage in Spark, the operator, and moves, about 20 minutes: make bench-spark BENCH_REPORTS=folder
	@$(PY) -m bench.spark_state --report "$(BENCH_REPORTS)/bench_spark_state"
	@$(PY) -m bench.spark_operator
	@$(PY) -m bench.moving --runners process spark "another process" --moves 18 --report "$(BENCH_REPORTS)/bench_moving_spark"

check: setup docs ## style, format and types; the documents as a site
	$(call say,Style)
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	$(call say,Types)
	@$(PY) -m mypy

docs: setup .venv/.docs ## the documents as a site, in .lsb/site; a dead link is an error
	$(call say,Documents)
	@$(PY) -m properdocs build --quiet --config-file docs/site/properdocs.yml

.venv/.docs: requirements/docs.txt .venv/.installed
	@$(PY) -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes -r $<
	@touch $@

format: setup ## bring the code into its format
	@$(PY) -m ruff check --fix-only --quiet
	@$(PY) -m ruff format

# Asks for uv, because pip cannot write a lock for other systems than its own.
lock: ## pin the newest allowed versions with hashes: requirements/**.txt
	@command -v uv >/dev/null || { echo 'uv is needed for this one: pip install uv'; exit 2; }
	$(call say,Resolving)
	@for set in services runtime spark dev peers/flink peers/quix peers/bytewax peers/pathway; do \
	  uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links \
	    $$(case $$set in runtime) echo 'requirements/services.in -c requirements/services.txt';; \
	      spark|dev) echo '-c requirements/runtime.txt';; esac) \
	    requirements/$$set.in -o requirements/$$set.txt; \
	done

clean: down ## remove the environment, data, logs and caches (fetched servers in .lsb/parts stay)
	rm -rf .venv .lsb/stack .lsb/stack.env .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
