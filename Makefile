# Targets for development; `make` alone lists them. They need python3 (3.11 or later), pip, make
# and git. Everything else is installed into .venv and .venv-demo, at the versions of
# requirements/dev.txt. What is needed less often is in scripts/.

PYTHON ?= python3
QUESTION ?=
DEMO ?= default
export PYTHON QUESTION
# pip does not compile what it installs: Python does so at the first import, and keeps the result.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-rest test-long test-serving test-newest test-python test-all engine check fix docs bench wheel clean
.DELETE_ON_ERROR:

help: ## list the targets
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-15s%s\n", $$1, $$2 }'

install: .venv/.ready ## create .venv with everything that development needs
	@echo "ready: .venv"

# Its environment has no torch.
demo: export DEMO := $(DEMO)
demo: .venv-demo/.ready ## watch real models vote, keep a rule and survive a failure (QUESTION="..." asks one question, DEMO=small is light, DEMO=scripted fetches no model)
	@.venv-demo/bin/langchain-specfuse $(if $(QUESTION),--yes --lead none "$$QUESTION",demo --yes)

test: .venv/.ready ## run the tests, real models included: about four minutes on two idle cores
	scripts/pytest -m "not long and not serving"

test-rest: test-long test-serving ## run what `make test` leaves out

test-long: .venv/.ready ## run the tests that take minutes
	scripts/pytest -m "long and not serving" `grep -rlE "mark\.long|three_first" tests --include="test_*.py"`

test-serving: .venv/.ready ## run the tests of real engines (`make engine` first) and of Ray clusters
	scripts/test-serving

test-newest: .venv/.ready ## run tests of the interfaces with the newest and oldest langchain-core and llama.cpp
	scripts/test-newest

test-python: .venv/.ready ## run quick tests under the newest supported Python that is installed, if .venv's is older
	scripts/test-python

test-all: test test-rest ## run every test with the versions of .venv

engine: ## install vLLM for the CPU for `make test-rest`, unless an engine is there: 3 GB, two minutes
	scripts/engine

check: .venv/.ready ## check style, types and which folder imports which
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/python -m pytest -q tests/test_layers.py -k "folders or packages or through"

fix: .venv/.ready ## let ruff fix style
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

docs: .venv/.ready ## update the generated parts of the documentation, and build the site in docs/_site
	.venv/bin/python scripts/docs/build.py
	.venv/bin/python -m sphinx -b html -q -E -W --keep-going -d build/doctrees docs docs/_site
	@echo "the site: docs/_site/index.html"

bench: .venv/.ready ## measure all figures of the docs again: an estimated 16 minutes on two idle cores
	scripts/bench

wheel: .venv/.ready ## build wheel and source archive in dist/, and use the wheel in bare environments, one for each extra
	scripts/try-wheel

clean: ## remove everything that these targets and scripts/ created, .venv too
	rm -rf .venv .venv-demo .venv-newest .venv-python .venv-vllm dist build docs/_site
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv-demo/.ready: pyproject.toml requirements/dev.txt
	@echo "installing the package and what it needs, without models, from the package index into .venv-demo (280 MB)"
	scripts/install .venv-demo -e ".[demo]"
	@touch $@

# deepagents is installed without its dependencies: it would bring clients of providers.
.venv/.ready: pyproject.toml requirements/dev.in requirements/dev.txt
	scripts/install .venv -r requirements/dev.in -e ".[demo,transformers,ray,serve,server]"
	scripts/install .venv --no-deps deepagents
	@touch $@
