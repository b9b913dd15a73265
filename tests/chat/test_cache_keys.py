"""Cache keys distinguish functions and members, in this process and in others."""

from __future__ import annotations

import gc
import runpy
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import FakeListChatModel

from langchain_specfuse import ChatModelMember, Method, ScriptedMember, SpecFuseChatModel, checks

MEMBER = ScriptedMember("A 1", name="a")


def key(result: Any, at_call: bool = False) -> str:
    options = {"method": Method(segment="answer", result=result)}
    llm = SpecFuseChatModel(members=[MEMBER], **({} if at_call else options))
    return llm._get_llm_string(**(options if at_call else {}))


def first_letter(text: str) -> str:
    return text[:1]


def last_letter(text: str) -> str:
    return text[-1:]


class Letter:
    def __init__(self, at: int) -> None:
        self.at = at

    def of(self, text: str) -> str:
        return text[self.at]

    __call__ = of
    __hash__ = None  # type: ignore[assignment]


def letter_at(at: int) -> Any:
    return lambda text: text[at]


def letter_by_default(at: int) -> Any:
    def letter(text: str, at: int = at) -> str:
        return text[at]

    return letter


@pytest.mark.parametrize("at_call", [False, True], ids=["made with it", "called with it"])
def test_different_functions_never_share_a_key(at_call: bool) -> None:
    functions = [
        first_letter,
        last_letter,
        lambda text: text[0],
        lambda text: text[1],
        letter_at(0),
        letter_at(1),
        letter_by_default(0),
        letter_by_default(1),
        Letter(0),
        Letter(1),
        Letter(0).of,
        Letter(1).of,
        partial(letter_at, 0),
        partial(letter_at, 1),
        str.strip,
        str.lower,
    ]
    keys = [key(function, at_call) for function in functions]
    assert len(set(keys)) == len(functions)
    assert keys == [key(function, at_call) for function in functions]
    assert not any(
        f"{id(function):x}" in text for function, text in zip(functions, keys, strict=True)
    )


def test_the_key_of_a_deleted_function_is_never_reused() -> None:
    """Python soon reuses the address of a deleted object."""
    keys = set()
    for _ in range(3):
        keys.add(key(letter_at(0)))
        keys.add(key(Letter(0)))
        gc.collect()
    assert len(keys) == 6


GRADES = """
from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel, checks

def grade(text):
    return helper(text)

def helper(text):
    return text.strip()

def outer():
    def inner(text):
        return text.lower()
    return inner

def key(result):
    method = Method(segment="answer", result=result)
    llm = SpecFuseChatModel(members=[ScriptedMember("A", name="a")], method=method)
    return llm._get_llm_string()

def polite(text):
    return None

def checked_key():
    members = [ScriptedMember("A", name="a")]
    return SpecFuseChatModel(members=members, checks=[polite, checks.forbids("x")])._get_llm_string()

if __name__ == "__main__":
    print(key(grade), key(str.lower), checked_key(), sep="\\n")
    print(key(outer()), key(lambda text: text[:1]), sep="\\n")
"""


Printed: TypeAlias = Callable[..., list[str]]


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Runs a program here, or in another process, and returns the lines that it prints."""

    def lines(program: str, *, elsewhere: bool = False) -> list[str]:
        file = tmp_path / "grades.py"
        file.write_text(program)
        if not elsewhere:
            runpy.run_path(str(file), run_name="__main__")
            return capsys.readouterr().out.splitlines()
        done = subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, check=True, timeout=120
        )
        return done.stdout.splitlines()

    return lines


def test_a_function_or_a_check_has_the_same_key_in_another_process(printed: Printed) -> None:
    first, second = printed(GRADES), printed(GRADES, elsewhere=True)
    assert first[:3] == second[:3]
    assert not set(first[3:]) & set(second[3:]), "these cannot be imported by their names"
    # a helper function in the same file is part of the key
    changed = GRADES.replace("text.strip()", "text.upper()").replace("return None", "return ''")
    grade, lower, checked = printed(changed, elsewhere=True)[:3]
    assert lower == first[1] and grade != first[0] and checked != first[2]


def test_an_object_comes_from_the_cache_only_if_it_was_asked_for_in_the_same_way() -> None:
    replies = [f'{{"a": {number}}}' for number in range(3)]
    member = ChatModelMember(FakeListChatModel(responses=replies), name="a")
    llm = SpecFuseChatModel(members=[member], cache=InMemoryCache())
    schema = {"title": "A", "type": "object", "properties": {"a": {"type": "integer"}}}
    ways = [
        llm.with_structured_output(schema),
        llm.with_structured_output({**schema, "title": "B"}),
        llm.with_structured_output(schema, method="json_mode"),
    ]
    for number, way in enumerate([*ways, *ways]):
        assert way.invoke("Which number?") == {"a": number % 3}


def test_the_key_of_a_call_with_other_members_depends_on_their_arguments() -> None:
    llm = SpecFuseChatModel(members=[MEMBER], cache=InMemoryCache())
    other = ScriptedMember("B 2", name="b")
    string = llm._get_llm_string(members=[other])
    assert string == llm._get_llm_string(members=[ScriptedMember("B 2", name="b")])
    assert string != llm._get_llm_string(members=[ScriptedMember("C 3", name="b")])
    assert llm.invoke("?", members=[other]).text == "B 2"
    assert llm.invoke("?").text == "A 1"


# --- checks ---------------------------------------------------------------------------------------


def polite(text: str) -> str | None:
    return None


def brief(text: str) -> str | None:
    return None


def checked_key(*given: Any, at_call: bool = False) -> str:
    options = {"checks": list(given)}
    llm = SpecFuseChatModel(members=[MEMBER], **({} if at_call else options))
    return llm._get_llm_string(**(options if at_call else {}))


@pytest.mark.parametrize("at_call", [False, True], ids=["made with them", "called with them"])
def test_different_checks_never_share_a_key(at_call: bool) -> None:
    given = [
        [],
        [polite],
        [brief],
        [polite, brief],
        [brief, polite],
        [checks.at("sentence", polite)],
        [checks.at("sentence", polite, name="other")],
        [lambda text: None],
        [letter_at(0)],
        [letter_at(1)],
        [partial(letter_at, 0)],
        [Letter(0)],
        [checks.forbids("a")],
        [checks.forbids("b")],
        [checks.max_words(80)],
        [checks.max_words(81)],
    ]
    keys = [checked_key(*one, at_call=at_call) for one in given]
    assert len(set(keys)) == len(given)
    assert keys == [checked_key(*one, at_call=at_call) for one in given]
    assert not any(" at 0x" in key for key in keys)


def test_ready_made_checks_that_are_equal_share_a_key() -> None:
    for make in (lambda: checks.forbids("a"), lambda: checks.max_words(80), checks.lowercase):
        assert checked_key(make()) == checked_key(make())


def test_a_call_that_turns_checks_off_has_the_key_of_a_model_without_them() -> None:
    llm = SpecFuseChatModel(members=[MEMBER], checks=[polite])
    assert llm._get_llm_string(checks=[]) == checked_key()
    assert llm.bind(checks=[brief]).kwargs["checks"] == [brief]
    assert llm._get_llm_string(checks=[brief]) == checked_key(brief)


def test_functions_that_are_gone_leave_nothing_behind() -> None:
    gone = []
    for _ in range(20):
        function = letter_at(0)
        checked_key(function, at_call=True)
        gone.append(weakref.ref(function))
    del function
    gc.collect()
    assert not any(reference() for reference in gone)
