"""The members' contract, on GGUF files: real weights in four bits."""

from __future__ import annotations

import pytest

from langchain_specfuse.demo import WHEELS
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

from .contract import MemberContract

pytestmark = [pytest.mark.real]


class TestSmolLM2(MemberContract):
    settles = False

    @pytest.fixture
    def make_member(self, tmp_path):
        return lambda: LlamaCppMember(WHEELS[0].gguf(tmp_path))
