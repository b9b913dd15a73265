"""The examples beside the formulas are right."""

import doctest
import importlib
import pkgutil

import pytest

from langchain_specfuse import core

MODULES = [module.name for module in pkgutil.iter_modules(core.__path__)]
WITH_EXAMPLES = {"answer", "panel", "voting"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    found = doctest.testmod(importlib.import_module(f"{core.__name__}.{name}"))
    assert found.failed == 0
    assert found.attempted > 0 or name not in WITH_EXAMPLES
