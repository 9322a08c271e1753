# `make help` lists the commands.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
PY := .venv/bin/python
CHAOS_SEEDS ?= 1

# Test processes side by side. Files with slow tests come first (tests/conftest.py), so that all processes finish at about
# the same time. Those of tests on real servers have their own servers, and wait for half of their time. Meanwhile, another
# one runs tests that need no server.
SIDE_BY_SIDE ?= -n 2 --dist loadfile --no-loadscope-reorder
ON_SERVERS ?= -n $(shell $(PYTHON) -m tests.side_by_side) --dist loadfile --no-loadscope-reorder --fill-waits
CHAOS_REPORT ?= .lsb/chaos
BENCH_REPORTS ?= .lsb
SOAK_MINUTES ?= 65
SOAK_REPORT ?= .lsb/soak
UPGRADE ?= --upgrade

PIP = $(PY) -m pip --quiet --disable-pip-version-check
# Compressing what is unpacked at once takes longer than everything else about a wheel.
STORED := --config-settings=--build-option=--compression=stored

# Progress appears at once, even if the output is a file.
export PYTHONUNBUFFERED := 1
# The tests start hundreds of processes. Without bytecode files, each would spend half of its startup compiling.
unexport PYTHONDONTWRITEBYTECODE

comma := ,
say = @printf '\n== %s\n' "$(1)"

# A recipe line that fails if PYTHON cannot run this project.
needs_python = @$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "'$(PYTHON)' is not Python 3.11 or newer. Install it, or give its path: make setup PYTHON=/path/to/python3.11"; exit 2; }

.PHONY: help setup servers jars influxd style types demo up down status env dashboards quick test test-compose compose-needs test-chaos soak simulation mutations fuzz bench bench-engine bench-kafka bench-replicas bench-spark check docs format lock clean

help: ## this list
	@printf 'LocalStreamBuffer: commands\n\n'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|'
	@printf '\n  make demo EVENTS=path/to/events.json [AS_RECORDED=1]   the same with your own recording\n  make demo RUNNER=process, make demo RUNNER=spark       without the move: in a process, in Spark\n  make demo UI=1                                         with a web page, until Ctrl-C\n'

setup: .venv/.ready ## create the Python environment in .venv (quick when nothing has changed)

# pyspark has no wheel. It is made beside the installation of all other packages, which takes about as long.
.venv/.installed: requirements/dev.txt
	$(call say,Python packages into .venv (about two minutes the first time))
	$(needs_python)
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 2; }
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@mkdir -p .venv/wheels
	@sed -n '/^pyspark==/,/[^\\]$$/p' $< >.venv/wheels/pyspark.txt
	@sed '/^pyspark==/,/[^\\]$$/d' $< >.venv/wheels/others.txt
	@$(PIP) wheel --no-deps --require-hashes $(STORED) --wheel-dir .venv/wheels -r .venv/wheels/pyspark.txt & making=$$!; \
	  trap 'kill $$making 2>/dev/null || true' EXIT; \
	  $(PIP) install --no-compile --require-hashes -r .venv/wheels/others.txt; \
	  wait $$making; trap - EXIT
	@$(PIP) install --no-compile --no-deps --no-index .venv/wheels/pyspark-*.whl
	@rm -r .venv/wheels
	@touch $@

# Compat mode puts the project root on the path, so that adding a package does not require reinstalling.
.venv/.ready: .venv/.installed pyproject.toml
	$(call say,The project itself into .venv)
	@$(PIP) install --no-deps --no-build-isolation --no-index \
	  --config-settings editable_mode=compat --editable .
	@$(PY) -m joiner.cli.loops # once, for all later processes
	@touch $@

demo: setup ## the whole pipeline: start, replay, join, move to Spark, verify, stop (EVENTS=path, RUNNER=process or spark, UI=1)
	@EVENTS="$(EVENTS)" AS_RECORDED="$(AS_RECORDED)" RUNNER="$(RUNNER)" MOVE="$(MOVE)" UI="$(UI)" $(PY) -m demo

up: setup ## start Kafka, the MQTT broker and InfluxDB on this machine
	@$(PY) -m broker.stack up

down: ## stop the servers; the data is kept
	@if [ -x $(PY) ]; then $(PY) -m broker.stack down; else echo 'nothing to stop: there is no .venv'; fi

status: setup ## show which servers are running, and where
	@$(PY) -m broker.stack status || [ $$? -eq 1 ] # 1: a server is not running, which is not an error for make

env: ## generate random passwords and tokens for docker-compose.yml, once
	@$(PYTHON) -m broker.compose.environment

dashboards: setup ## generate grafana/dashboards from grafana/generate.py
	@$(PY) -m grafana.generate

quick: setup check ## for everyday work: style, types, unit and property tests, under three minutes
	@$(PY) -m pytest -q $(SIDE_BY_SIDE) tests/unit tests/property
	@printf '\nPASSED: checks, unit and property tests are fine. `make test` runs everything that must pass.\n'

# The checks and what is fetched take turns at the cores: most of it can use only one, or waits for the network.
test: ## everything that must pass: checks, all tests but the longest, one chaos seed
	@$(MAKE) --no-print-directory --jobs=5 check servers
	$(call say,Tests of rules and logic)
	@$(PY) -m pytest $(SIDE_BY_SIDE) tests/unit
	$(call say,Tests on real servers$(comma) in Spark and with crashes at seeded moments (seed $(CHAOS_SEEDS))$(comma) and beside them tests of laws and simulations)
	@$(call chaos,$(CHAOS_SEEDS)) tests/spark tests/integration tests/property tests/simulation tests/packaging $(ON_SERVERS) --durations 30
	@printf '\nPASSED: checks, tests and crashes are all fine.\n'

servers: influxd jars setup ## fetch Kafka, the MQTT broker and InfluxDB, if they are missing

# Needs no more than the packages, so that the downloads do not wait for the rest of the setup.
jars: .venv/.installed
	@$(PY) -m broker.stack fetch kafka mqtt

# Without the environment, so that Go can begin at once: building InfluxDB takes longer than anything else here.
influxd:
	$(needs_python)
	@$(PYTHON) -m broker.stack fetch influxdb

test-compose: compose-needs setup ## test docker-compose.yml with stand-in images (start, kills, alerts, Spark), about fifteen minutes; needs Docker and debootstrap
	@$(PY) -m pytest tests/compose -rs -v

# This target comes first, so that a missing program is reported before anything is built.
compose-needs:
	@$(PYTHON) -m tests.compose.needs

test-chaos: setup ## many more crashes and limits, and all long tests, about an hour: make test-chaos CHAOS_SEEDS="7-12" CHAOS_REPORT=path
	@LSB_CHAOS_FULL=1 LSB_CHAOS_REPORT="$(CHAOS_REPORT)" \
	  $(call chaos,$(if $(filter-out file,$(origin CHAOS_SEEDS)),$(CHAOS_SEEDS),1-22))
	@LSB_CHAOS_FULL=1 $(PY) -m pytest -m long $(SIDE_BY_SIDE) tests/integration tests/spark tests/simulation

soak: setup ## an hour with a kill every minute: make soak SOAK_MINUTES=65 SOAK_REPORT=path
	@$(PY) -m tests.chaos.soak --minutes $(SOAK_MINUTES) --report "$(SOAK_REPORT)"

simulation: setup ## ten thousand simulated histories of the runner, with a broker in memory, and 1,200 of its instances
	@$(PY) -m tests.simulation --seeds 1-10000 --jobs 2
	@LSB_MEMBERSHIP_SEEDS=100 $(PY) -m pytest -n 2 tests/simulation/test_membership.py -k "in_the_end"

fuzz: setup ## a million cases of hostile input for everything that reads external bytes, about 15 minutes
	@$(PY) -m tests.fuzz --cases 1000000 --seed 1 --jobs 2

mutations: setup ## break each rule of the join once and require that a test fails; check its laws with 1,000 examples; about 15 minutes
	@LSB_PROPERTY_EXAMPLES=1000 $(PY) -m pytest $(SIDE_BY_SIDE) tests/property
	@$(PY) -m tests.property.mutations

# The tests in tests/chaos read their seeds from the environment; without seeds, they run once.
chaos = LSB_CHAOS_SEEDS="$(strip $(1))" $(PY) -m pytest tests/chaos

bench: setup ## compare with windowed joins and other engines, end to end, about five hours, or minutes with QUICK=1: make bench BENCH="--resume"
	@$(PY) -m bench.contest $(if $(QUICK),--quick --results .lsb/bench/results --page .lsb/bench/benchmarks.md --plots .lsb/bench/plots) $(BENCH)

bench-engine: setup ## compare the join in memory with pandas, polars, DuckDB, about ten minutes: make bench-engine BENCH_REPORTS=folder
	@$(PY) -m bench.library.engine --report "$(BENCH_REPORTS)/bench_engine"
	@$(PY) -m bench.library.tables --report "$(BENCH_REPORTS)/bench_tables"
	@$(PY) -m bench.library.aligned_tables --report "$(BENCH_REPORTS)/bench_aligned_tables"

bench-kafka: setup ## throughput and latency compared with a raw pass-through, recovery, moves, metrics, about 30 minutes: make bench-kafka BENCH_REPORTS=folder
	@$(PY) -m bench.kafka --report "$(BENCH_REPORTS)/bench_kafka"
	@$(PY) -m bench.kafka.batches --report "$(BENCH_REPORTS)/bench_batches"
	@$(PY) -m bench.kafka.layouts --report "$(BENCH_REPORTS)/bench_layouts"
	@$(PY) -m bench.kafka.profile --report "$(BENCH_REPORTS)/bench_profile"
	@$(PY) -m bench.latency --report "$(BENCH_REPORTS)/bench_latency"
	@$(PY) -m bench.recovery --report "$(BENCH_REPORTS)/bench_recovery"
	@$(PY) -m bench.runners.moving --report "$(BENCH_REPORTS)/bench_moving"
	@$(PY) -m bench.metrics --report "$(BENCH_REPORTS)/bench_metrics"
	@$(PY) -m bench.page --report "$(BENCH_REPORTS)/bench_page"
	@$(PY) -m bench.growth --report "$(BENCH_REPORTS)/growth"

bench-replicas: setup ## latency around faults with and without replicas, and their cost, about 35 minutes: make bench-replicas BENCH_REPORTS=folder
	@$(PY) -m bench.runners.replicas --report "$(BENCH_REPORTS)/bench_replicas"

bench-spark: setup ## the operator in Spark, moves to and from Spark, about 15 minutes: make bench-spark BENCH_REPORTS=folder
	@$(PY) -m bench.spark_operator
	@$(PY) -m bench.runners.moving --runners process spark "another process" --moves 18 --report "$(BENCH_REPORTS)/bench_moving_spark"

check: style types docs ## check style, format and types, and build the documents

# These two need no more than the packages, so that they run beside the rest of the setup in `make test`.
style: .venv/.installed
	$(call say,Style)
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check

types: .venv/.installed
	$(call say,Types)
	@$(PY) -m mypy

docs: setup .venv/.docs ## build the documents as a site, in .lsb/site; a dead link is an error
	$(call say,Documents)
	@$(PY) -m properdocs build --quiet --config-file docs/site/properdocs.yml

.venv/.docs: requirements/docs.txt .venv/.ready
	@$(PIP) install --no-compile --require-hashes -r $<
	@touch $@

format: setup ## format the code
	@$(PY) -m ruff check --fix-only --quiet
	@$(PY) -m ruff format

# Uses uv, because pip writes locks only for the system it runs on. Each lock constrains the next one, so that a package
# has the same version in all of them. The benchmark peers have separate environments.
lock: ## pin the newest allowed versions with hashes: requirements/**.txt (make lock UPGRADE= keeps the current pins)
	@command -v uv >/dev/null || { echo 'make lock needs uv: pip install uv'; exit 2; }
	$(call say,Resolving)
	@pin() { \
	  uv pip compile --quiet $(UPGRADE) --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links "$$@"; \
	}; \
	pin pyproject.toml -o requirements/library.txt; \
	pin pyproject.toml --extra service --extra sparkplug --extra protobuf -c requirements/library.txt -o requirements/services.txt; \
	pin pyproject.toml --extra control -c requirements/services.txt -o requirements/control.txt; \
	pin pyproject.toml --extra arrow -c requirements/services.txt -o requirements/arrow.txt; \
	pin pyproject.toml --extra spark -c requirements/arrow.txt -o requirements/spark.txt; \
	pin pyproject.toml --extra all requirements/dev.in -c requirements/spark.txt -c requirements/control.txt -o requirements/dev.txt; \
	pin requirements/docs.in -c requirements/dev.txt -o requirements/docs.txt; \
	for peer in flink quix bytewax pathway; do pin requirements/peers/$$peer.in -o requirements/peers/$$peer.txt; done

clean: down ## remove the environment, data, logs and caches (fetched servers in .lsb/parts stay)
	rm -rf .venv .lsb/stack .lsb/stack.env .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
