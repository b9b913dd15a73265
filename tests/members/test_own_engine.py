"""The example of a member of one's own, ``examples/own_engine.py``, keeps the contract: on real weights, in 4 bits."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from langchain_specfuse.demo import WHEELS

from .contract import MemberContract

pytestmark = [pytest.mark.real, pytest.mark.long]
FILE = Path(__file__).parents[2] / "examples" / "own_engine.py"


@pytest.fixture(scope="module")
def engine():
    spec = importlib.util.spec_from_file_location("own_engine", FILE)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


class TestOwnEngine(MemberContract):
    @pytest.fixture
    def make_member(self, engine, tmp_path):
        return lambda: engine.GgufMember(WHEELS[0].gguf(tmp_path))
