"""How long a conversation is, is told by whoever can: a member that is ill costs no question its answer."""

from __future__ import annotations

import threading

import pytest

from langchain_specfuse import ScriptedMember
from langchain_specfuse.door import Limits, lengths

from .conftest import BLUE, ensemble, until

SECRET = "http://10.1.2.3:8000 cannot be reached"
SHORT = [{"role": "user", "content": "word" + " word" * 8}]
LONG = [{"role": "user", "content": "word" + " word" * 29}]


class Ill(ScriptedMember):
    """Cannot count, as one whose server is gone."""

    def token_count(self, turns, tools=()):
        raise ValueError(SECRET)


class Hanging(ScriptedMember):
    """Counts when it is let go, as one whose server hangs."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.asked, self.go = 0, threading.Event()

    def token_count(self, turns, tools=()):
        self.asked += 1
        assert self.go.wait(30)
        return 1


@pytest.fixture
def hanging():
    member = Hanging(BLUE, name="first")
    yield member
    member.go.set()


def test_where_the_first_member_cannot_count_the_next_one_does(door):
    here = door(ensemble(Ill(BLUE, name="first"), BLUE, BLUE), limits=Limits(most_prompt_tokens=10))
    assert here.asked(messages=SHORT).json()["choices"][0]["message"]["content"] == BLUE
    told = here.asked(messages=LONG)
    assert (told.status_code, told.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "30 tokens, at most 10" in told.text


def test_where_no_member_can_count_bytes_are_and_nobody_is_told_why(door):
    here = door(ensemble(Ill(BLUE, name="ill")), limits=Limits(most_prompt_tokens=20))
    assert here.asked(messages=SHORT).status_code == 200
    told = here.asked(messages=LONG)
    assert told.json()["error"]["code"] == "context_length_exceeded" and "38 tokens" in told.text
    assert SECRET not in told.text


def test_a_member_that_hangs_is_waited_for_once_and_asked_again_when_it_is_back(door, hanging):
    here = door(ensemble(hanging, BLUE, BLUE, member_timeout=0.3), limits=Limits(most_prompt_tokens=10))
    for _ in range(3):
        assert here.asked(messages=SHORT).status_code == 200
    assert hanging.asked == 1
    hanging.go.set()
    assert until(lambda: here.asked(messages=LONG).status_code == 200)  # it says 1
    assert hanging.asked > 1


def test_without_a_members_own_limit_counting_has_one(door, hanging, monkeypatch):
    monkeypatch.setattr(lengths, "COUNT_S", 0.2)
    here = door(ensemble(hanging, BLUE), limits=Limits(most_prompt_tokens=10, timeout_s=2))
    assert here.asked(messages=SHORT).status_code == 200


def test_the_users_own_counter_is_asked_and_no_member(door, hanging):
    llm = ensemble(hanging, BLUE, custom_get_token_ids=lambda text: list(range(11)))
    told = door(llm, limits=Limits(most_prompt_tokens=10)).asked(messages=SHORT)
    assert "11 tokens" in told.text and not hanging.asked
