"""The members' contract on GGUF files: real weights in four bits."""

from __future__ import annotations

import pytest

from langchain_specfuse.demo import GEMMA, SMOLLM2, file_of
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

from ..contract import MemberContract

pytestmark = [pytest.mark.real]


class TestSmolLM2(MemberContract):
    settles = False

    @pytest.fixture
    def make_member(self, tmp_path):
        return lambda: LlamaCppMember(file_of(SMOLLM2))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return file_of(GEMMA)


@pytest.mark.long
class TestGemma(MemberContract):
    """Its K-quants, like those in Qwen's file, use different kernels for one text and for many,
    which round differently."""

    settles = False
    tolerance, alike = 1.0, 0.6

    @pytest.fixture
    def make_member(self, gemma):
        return lambda: LlamaCppMember(gemma, chat_template="plain")
