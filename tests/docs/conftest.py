from __future__ import annotations

import importlib.util
import sys

import pytest

from .blocks import ROOT


@pytest.fixture(scope="package")
def build():
    """Return ``scripts/docs/build.py`` as a module."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location(
        "docs_build", ROOT / "scripts" / "docs" / "build.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before
