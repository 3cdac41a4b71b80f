# Every target does its own set-up: the stamp files make `.venv` on first use and again when
# pyproject.toml changes. ARGS passes flags on, e.g. `make demo ARGS=--json`.

VENV ?= .venv
PY := $(VENV)/bin/python
ARGS ?=

export VENV PYTHON

DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help demo test lint fuzz campaign-kill campaign-crash campaign-model campaign-mutants campaign-advisories external-agmi campaign-tamper campaign-faults campaign-failover clean FORCE

# A copied or moved checkout must not run the sources of the place it came from.
moved = $(if $(wildcard $(1)),$(if $(filter-out $(shell cat $(1)),$(CURDIR)),FORCE))

$(DEMO): pyproject.toml scripts/bootstrap $(call moved,$(DEMO))
	@scripts/bootstrap demo

$(DEV): pyproject.toml scripts/bootstrap $(call moved,$(DEV))
	@scripts/bootstrap dev

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  ARGS="..." passes flags on; PYTHON=/path/to/python picks the interpreter.'

demo: $(DEMO) ## kill a payment agent in the middle, resume it, count the charges (under a minute)
	@$(PY) -m surefoot.demo $(ARGS)

test: $(DEV) ## the whole test suite, with a real PostgreSQL
	@$(PY) -m pytest $(ARGS)

lint: $(DEV) ## ruff, format, mypy, layers
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check --quiet
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-logo

fuzz: $(DEV) ## fuzz all decoders with atheris for two minutes (ARGS="-max_total_time=3600": longer)
	@$(PY) -c 'import atheris' 2>/dev/null || $(PY) -m pip --no-input --disable-pip-version-check \
		install --quiet --only-binary :all: 'atheris>=3' || { echo 'make fuzz: atheris has no wheel for' \
		"this Python ($$($(PY) -V)) and system; use PYTHON=/path/to/python3.11 on Linux x86-64, or run" \
		'make test ARGS=tests/fuzz, which plays the same targets with hypothesis.' >&2; exit 1; }
	@$(PY) tests/fuzz/atheris_run.py $(ARGS)

campaign-kill: $(DEV) ## SIGKILL 2,000 real processes at printed barriers (FULL=1: 20,000, hours)
	@SUREFOOT_KILLS=$(if $(FULL),20000,2000) $(PY) -m pytest -m kill -v -rP $(ARGS)

campaign-crash: $(DEV) ## a simulated crash at every boundary of every graph, twice in order too (hours)
	@SUREFOOT_CRASHES=all $(PY) -m pytest tests/crash/test_enumerator.py -v --timeout 7200 $(ARGS)

campaign-model: $(DEV) ## explore 25 million states of the protocol (JSON=path writes a report)
	@JSON="$(JSON)" $(PY) -m tests.model.campaign $(ARGS)

campaign-mutants: $(DEV) ## make 100 protocol mistakes, each must fail a named test (JSON=path)
	@$(PY) -m tests.mutants.run $(if $(JSON),--json $(JSON)) $(ARGS)

campaign-advisories: $(DEV) ## tampering and advisories in full: every form, both halves on both databases (minutes)
	@SUREFOOT_FULL=1 $(PY) -m pytest tests/advisories tests/external -v $(ARGS)

external-agmi: $(DEV) ## agmi-check's own tables: nine published tamper edits, on both databases (a minute)
	@$(PY) -m tests.external.agmi_tables $(ARGS)

campaign-tamper: $(DEV) ## turn every bit of every stored column, 1,900,000 of them (JSON=report; hours)
	@$(PY) -m tests.tamper.campaign $(if $(JSON),--json $(JSON)) $(ARGS)

campaign-faults: $(DEV) ## fail every operation, message and page that a run touches, in every way (about 20 minutes)
	@SUREFOOT_FAULTS=all $(PY) -m pytest tests/storage_faults \
		tests/saver/test_shared_stores.py -v -rP --show-capture=stdout --timeout 3000 $(ARGS)

campaign-failover: $(DEV) ## 10 failovers that lose commits, 2 x 40 crashes of the server under load (FULL=1: 5 times that)
	@SUREFOOT_FAILOVERS=$(if $(FULL),50,10) SUREFOOT_STOPS=$(if $(FULL),200,40) \
		$(PY) -m pytest tests/failover -v -s $(ARGS)

clean: ## remove the environment, caches and build products
	[ ! -e $(VENV)/.surefoot ] || rm -rf $(VENV)
	rm -rf .bootstrap.log .mypy_cache .ruff_cache .pytest_cache .import_linter_cache \
		.hypothesis .fuzz build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
