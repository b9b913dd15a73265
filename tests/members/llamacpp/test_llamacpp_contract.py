"""The members' contract on GGUF files: real weights in four bits."""

from __future__ import annotations

import pytest

from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

from ..contract import MemberContract

pytestmark = pytest.mark.real


class TestSmolLM2(MemberContract):
    settles = False

    @pytest.fixture
    def make_member(self):
        return lambda: LlamaCppMember(file_of(SMOLLM2))
