"""The members' contract on in-process members of several architectures."""

import pytest

from .. import tiny
from ..contract import MemberContract


class InProcess(MemberContract):
    arch = ""
    seed = 1
    settles = False

    @pytest.fixture
    def make_member(self):
        model, tokenizer = tiny.cached(self.arch, self.seed)
        return lambda: tiny.TransformersMember(model, tokenizer, name=f"{self.arch}-{self.seed}")


@pytest.mark.long
class TestFullAttention(InProcess):
    arch = "llama"


@pytest.mark.long
class TestAbsolutePositionsAndAPlainTemplate(InProcess):
    arch = "gpt2"


class TestSlidingWindowAmongFull(InProcess):
    arch = "gemma3"


class TestRecurrentStates(InProcess):
    arch = "qwen3-next"
