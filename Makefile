# The front door: `make help` lists what to type.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
PY := .venv/bin/python
CHAOS_SEEDS ?= 1 2 3

say = @printf '\n== %s\n' "$(1)"

.PHONY: help setup demo up down status test test-chaos check format lock clean

help: ## this list
	@printf 'LocalStreamBuffer: what to type\n\n'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|'
	@printf '\n  make demo EVENTS=path/to/events.json [AS_RECORDED=1]   the same on your own recording\n'

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
.venv/.ready: .venv/.installed pyproject.toml requirements/runtime.in
	$(call say,The project itself into .venv)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index \
	  --config-settings editable_mode=compat --editable .
	@touch $@
