"""The members' contract, on GGUF files: real weights in four bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from langchain_specfuse.demo import GEMMA, SMOLLM2, file_of
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

from .contract import MemberContract

pytestmark = [pytest.mark.real]


class TestSmolLM2(MemberContract):
    settles = False

    @pytest.fixture
    def make_member(self, tmp_path):
        return lambda: LlamaCppMember(file_of(SMOLLM2))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return file_of(GEMMA)


class TestGemma(MemberContract):
    settles = False
    tolerance = 0.5

    @pytest.fixture
    def make_member(self, gemma):
        return lambda: LlamaCppMember(gemma, chat_template="plain")


@pytest.mark.skipif(not os.environ.get("QWEN"), reason="x")
class TestQwen(MemberContract):
    settles = False
    tolerance = 0.5

    @pytest.fixture
    def make_member(self):
        return lambda: LlamaCppMember(Path("/tmp/big/qwen1.5b.gguf"))
