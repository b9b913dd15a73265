"""The members' contract on GGUF files: tiny random weights, and real ones in four bits."""

from __future__ import annotations

import pytest

from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

from ..contract import MemberContract

pytestmark = pytest.mark.real


class TestTiny(MemberContract):
    settles = False

    @pytest.fixture
    def make_member(self, tiny_llama):
        return lambda: LlamaCppMember(tiny_llama)


@pytest.mark.long
class TestSmolLM2(MemberContract):
    settles = False

    @pytest.fixture
    def make_member(self):
        return lambda: LlamaCppMember(file_of(SMOLLM2))
