"""Disagreement as a signal: a confidence for every segment, and for every field of a JSON answer."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse import UsageError, _places, _signal
from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.referee import Unbound
from langchain_specfuse.core.rounds import rounds
from langchain_specfuse.core.values import Constraint, Draft, DraftJob, Query, Round, Seat, Settings, Turn
from langchain_specfuse.members.scripted import ScriptedMember

JSON = Constraint("json")
HERMES = Constraint("calls", json.dumps({"tools": [], "parallel": True}))
AUTO = Constraint("any_of", json.dumps([["prose", ""], ["calls", HERMES.body]]))
TOOLS_OR_JSON = Constraint("any_of", json.dumps([["json_schema", "{}"], ["calls", HERMES.body]]))


def told(members: list[ScriptedMember], referee: Any = None, seats: Any = None, **settings: Any) -> list[Round]:
    """The rounds of an answer that these members write, without threads."""
    by_name = {one.name: one for one in members}
    panel = Panel.of(seats or [Seat(one.name, True, not one.draft_only) for one in members])
    loop = rounds(Query("q", (Turn("user", "?"),)), Settings(**settings), panel, referee or Unbound())
    found: list[Round] = []
    replies: Any = None
    while True:
        try:
            item = loop.send(replies)
        except StopIteration:
            return found
        replies = None
        if isinstance(item, Round):
            found.append(item)
        else:
            work = {name: ("draft" if type(job).__name__ == "DraftJob" else "score") for name, job in item.jobs.items()}
            replies = {name: getattr(by_name[name], work[name])([job])[0] for name, job in item.jobs.items()}


def first(*answers: str, **options: Any) -> Round:
    members = [ScriptedMember(text, name=name, **options) for text, name in zip(answers, "abc", strict=False)]
    return told(members, segment_tokens=4)[0]


# --- segments ---------------------------------------------------------------------------------------------------


def test_the_confidence_is_the_share_of_the_vote_computed_by_hand() -> None:
    round = first("The sky is blue today", "The sky is wide today")
    # Each scores its own draft -0.1 a word, the other's one word of four with -3.0: means -0.1 and -0.825.
    mine = 1 / (1 + math.exp(-0.825 + 0.1))
    assert _signal.confidence(round) == pytest.approx(0.5 * mine + 0.5 * (1 - mine))
    three = first("The sky is blue today", "The sky is wide today", "The sky is blue always")
    assert three.authors == ("a", "c")
    # The two that wrote it give it the larger vote, the third the smaller.
    assert _signal.confidence(three) == pytest.approx((2 * mine + (1 - mine)) / 3)


def test_who_agree_are_sure_and_who_is_alone_knows_nothing() -> None:
    assert _signal.confidence(first("The sky is blue", "The sky is blue")) == 1.0
    assert _signal.confidence(first("The sky is blue")) is None


def test_where_nobody_votes_there_is_no_confidence() -> None:
    round = first("The sky is blue", "The sky is wide", draft_only=True)
    assert round.dissent == 1.0
    value = _signal.annotation(round, 0, 15)
    assert value["confidence"] is None and value["dissent"] is None
    # One draft is empty: it cannot be chosen, so nobody was asked.
    silent = told([ScriptedMember("Yes", name="a"), Mute("", name="b")])[0]
    assert silent.scores == {} and _signal.confidence(silent) is None


class Mute(ScriptedMember):
    """Says nothing and does not end."""

    def _draft(self, job: DraftJob) -> Draft:
        return Draft("")


def test_draft_only_members_have_no_vote_in_it() -> None:
    mute = ScriptedMember("The sky is wide today", name="b", draft_only=True)
    round = told([ScriptedMember("The sky is blue today", name="a"), mute], segment_tokens=4)[0]
    assert list(round.votes) == ["a"]
    assert _signal.confidence(round) == round.votes["a"]["a"] > 0.5


@given(st.lists(st.sampled_from(["one two", "one too", "won two", "one two three"]), min_size=2, max_size=5))
def test_a_confidence_lies_between_an_even_vote_and_one_mind(answers: list[str]) -> None:
    members = [ScriptedMember(text, name=f"m{k}") for k, text in enumerate(answers)]
    for round in told(members, exit="never"):
        sure = _signal.confidence(round)
        distinct = len({(draft.text, draft.ended) for draft in round.drafts.values()})
        assert sure is not None and 1 / distinct - 1e-9 <= sure <= 1.0
        assert (sure == 1.0) == (distinct == 1)


def test_an_annotation_is_plain_json_and_has_the_runner_up_on_request() -> None:
    round = first("The sky is blue today", "The sky is wide today")
    value = _signal.annotation(round, 3, 18, runners_up=True)
    assert json.loads(json.dumps(value)) == value
    assert (value["member"], value["start"], value["end"]) == ("a", 3, 18)
    assert value["runner_up"] == {"member": "b", "text": "The sky is wide", "ended": False, "total": 0.5}
    assert "runner_up" not in _signal.annotation(round, 3, 18)
    agreed = first("The sky", "The sky")
    assert _signal.annotation(agreed, 0, 7, runners_up=True)["runner_up"] is None


# --- where the fields stand -------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
STYLES = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, None, 2, "\t"]), "sort_keys": st.booleans()}
)


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The same paths, from the parsed value."""
    if isinstance(value, dict) and value:
        inner = [(f".{k}" if path else k, v, k) for k, v in value.items()]
        steps = [(step if k.isidentifier() else f"[{json.dumps(k)}]", v) for step, v, k in inner]
    elif isinstance(value, list) and value:
        steps = [(f"[{k}]", v) for k, v in enumerate(value)]
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for step, inside in steps:
        found |= leaves(inside, path + step)
    return found


@given(VALUES, STYLES)
def test_every_field_is_found_where_json_has_it(value: Any, style: dict[str, Any]) -> None:
    text = json.dumps(value, **style)
    found = list(_places.fields_at(text))
    assert all(one.whole for one in found)
    assert len({one.path for one in found}) == len(found)
    values = [json.loads(text[one.start : one.end]) for one in found]
    assert values == list(leaves(json.loads(text)).values())
    assert [one.path for one in found] == list(leaves(json.loads(text)))


@given(VALUES, STYLES, st.data())
def test_a_beginning_has_the_same_fields_and_says_what_is_not_finished(value: Any, style: Any, data: Any) -> None:
    text = json.dumps(value, **style)
    cut = data.draw(st.integers(0, len(text)))
    whole = {one.path: one for one in _places.fields_at(text)}
    found = list(_places.fields_at(text[:cut]))
    for one in found:
        assert one.end <= cut
        if one.whole and (one.path or cut == len(text)):
            assert one == whole[one.path]
    assert sum(not one.whole for one in found) <= 1


@given(VALUES.filter(lambda value: isinstance(value, dict | list)), st.text(max_size=9), st.text(max_size=9))
def test_text_around_changes_nothing_but_the_place(value: Any, before: str, behind: str) -> None:
    text = json.dumps(value)
    inside = list(_places.fields_at(before + text + behind, len(before)))
    shifted = [(one.path, one.start - len(before), one.end - len(before), one.whole) for one in inside]
    assert shifted == [(one.path, one.start, one.end, one.whole) for one in _places.fields_at(text)]


@given(st.text(st.sampled_from('{}[],:"\\ n1tu-ax\n\u00e9'), max_size=40))
def test_any_text_is_survived(text: str) -> None:
    for one in _places.fields_at(text):
        assert 0 <= one.start <= one.end <= len(text)


def test_what_comes_twice_counts_as_json_counts_it() -> None:
    text = '{"a": {"b": 1, "c": 2}, "a": {"c": 3}, "d": 1, "d": [4]}'
    assert {one.path: text[one.start : one.end] for one in _places.fields_at(text)} == {"a.c": "3", "d[0]": "4"}


def test_depth_and_length_are_no_danger() -> None:
    deep = "[" * 100_000 + "1" + "]" * 100_000
    (only,) = _places.fields_at(deep)
    assert only.path == "[0]" * _places.MOST_DEPTH and only.whole
    assert len(list(_places.fields_at("[" * 100_000))) == 1
    assert len(list(_places.fields_at(json.dumps({"a" * 50_000: "\\" * 200_000})))) == 1


# --- fields of an answer ----------------------------------------------------------------------------------------


def common(texts: list[str]) -> str:
    """The longest beginning that all of them share."""
    least, most = min(texts), max(texts)
    return least[: next((at for at, char in enumerate(least) if not most.startswith(char, at)), len(least))]


@dataclass(frozen=True)
class Only:
    """The referee of a finite language: the answer is one of these texts."""

    texts: tuple[str, ...]

    def _from(self, answer: str) -> list[str]:
        return [text[len(answer) :] for text in self.texts if text.startswith(answer)]

    def legal(self, answer: str, draft: str) -> int:
        return max((len(common([rest, draft])) for rest in self._from(answer)), default=0)

    def may_end(self, answer: str) -> bool:
        return answer in self.texts

    def must_end(self, answer: str) -> bool:
        return self._from(answer) == [""]

    def forced(self, answer: str) -> str:
        return common(self._from(answer))

    def spans(self, answer: str, draft: str) -> tuple[tuple[int, int], ...]:
        return tuple((at, at + 1) for at in range(len(draft)) if self.forced(answer + draft[:at]))

    def closing(self, answer: str) -> str:
        return min(self._from(answer), key=len)

    def same(self, answer: str, draft: str) -> str:
        return draft

    def prose(self, answer: str) -> int:
        return 0


class Reciter(ScriptedMember):
    """Goes on with its text from wherever the answer stands, a few characters at a time: it cannot mask."""

    size = 3

    def _draft(self, job: DraftJob) -> Draft:
        assert isinstance(self.answer, str)
        at = len("".join(segment.text for segment in job.answer))
        return Draft(self.answer[at : at + self.size], False, tuple(range(self.size)), (-0.1,) * self.size)


def fields(members: list[ScriptedMember], constraint: Any = JSON, referee: Any = None, **options: Any) -> Any:
    found = told(members, referee, **options)
    ledger = _signal.Ledger(constraint, lambda: referee or Unbound())
    for round in found:
        ledger.note(round)
    return ledger.fields(), found


def test_a_field_is_as_sure_as_the_least_sure_segment_that_wrote_its_value() -> None:
    ann = ScriptedMember('{"city": "San Marino is small" , "n": 12 }', name="ann")
    bob = ScriptedMember('{"city": "San Remo is nice" , "n": 12 }', name="bob")
    found, rounds = fields([ann, bob], segment_tokens=2)
    assert [round.segment.text for round in rounds] == ['{"city": "San', " Marino is", ' small" ,', ' "n": 12', " }"]
    sure = [_signal.confidence(round) or 0.0 for round in rounds]
    assert sure[0] == sure[3] == sure[4] == 1.0 and 0.5 <= sure[1] < 1.0 and 0.5 <= sure[2] < 1.0
    assert found == {
        "city": {"confidence": min(sure[1:3]), "how": "voted"},
        "n": {"confidence": 1.0, "how": "voted"},
    }


TRIPS = Only(('{"kind": "trip", "city": "Rome", "day": 4}', '{"kind": "trip", "city": "Paris", "day": 12}'))


def test_what_the_constraint_forced_has_no_confidence_and_says_so() -> None:
    members = [Reciter(TRIPS.texts[0], name="ann"), Reciter(TRIPS.texts[1], name="bob")]
    found, rounds = fields(members, JSON, TRIPS)
    assert rounds[0].forced == '{"kind": "trip", "city": "e", "day": 4}'
    assert rounds[0].segment.text == "Rom"  # its first letter was the only choice there was
    assert found["kind"] == found["day"] == {"confidence": None, "how": "forced"}
    assert found["city"] == {"confidence": _signal.confidence(rounds[0]), "how": "voted"}


def test_forced_characters_inside_a_segment_do_not_count_either() -> None:
    only = Only(('{"a": "x", "b": 1}', '{"a": "y", "b": 1}', '["no"]'))
    ann = Reciter(only.texts[0], name="ann")
    ann.size = 40
    found, rounds = fields([ann], JSON, only)
    assert rounds[0].segment.text == only.texts[0]
    assert found == {"a": {"confidence": None, "how": "unvoted"}, "b": {"confidence": None, "how": "forced"}}


def test_what_was_closed_by_hand_is_told() -> None:
    only = Only(('{"n": 12, "m": 3}', '{"n": 127, "m": 3}', '{"n": 9, "m": 4}', '{"n": 12, "m": 35}'))
    ann = Reciter(only.texts[1], name="ann")
    ann.size = 2
    found, rounds = fields([ann], JSON, only, max_rounds=1)
    assert rounds[-1].finish == "length" and rounds[-1].closed == ', "m": 3}'
    # Nobody said that the number ends there.
    assert found == {"n": {"confidence": None, "how": "closed"}, "m": {"confidence": None, "how": "closed"}}


def test_json_that_ends_too_soon_is_told() -> None:
    members = [ScriptedMember('{"a": 1, "b": "two words"}', name=name) for name in "ab"]
    found, _ = fields(members, max_tokens=4)
    assert found == {"a": {"confidence": 1.0, "how": "voted"}, "b": {"confidence": None, "how": "unfinished"}}


def test_a_stop_string_leaves_only_what_the_reader_has() -> None:
    found, rounds = fields([ScriptedMember('{"a": 1, "b": 2 } STOP', name=name) for name in "ab"], stop=("2",))
    assert rounds[-1].finish == "stop_string"
    assert set(found) == {"a"}


def test_a_member_alone_has_fields_without_confidence() -> None:
    found, _ = fields([ScriptedMember('{"a": 1 }', name="ann")])
    assert found == {"a": {"confidence": None, "how": "unvoted"}}


CALL = '<tool_call>\n{"name": "%s", "arguments": {"city": "%s", "at": [%d]}}\n</tool_call>'


@pytest.mark.parametrize("constraint", [HERMES, AUTO, TOOLS_OR_JSON])
def test_calls_have_the_paths_that_the_message_gives_them(constraint: Constraint) -> None:
    text = CALL % ("trip", "Rome", 1) + "\n" + CALL % ("stay", "</tool_call>", 2)
    told = {one.path: text[one.start : one.end] for one in _signal.fields_in(text, constraint)}
    assert told == {
        "tool_calls[0].name": '"trip"',
        "tool_calls[0].args.city": '"Rome"',
        "tool_calls[0].args.at[0]": "1",
        "tool_calls[1].name": '"stay"',
        "tool_calls[1].args.city": '"</tool_call>"',
        "tool_calls[1].args.at[0]": "2",
    }


def test_other_ways_to_write_a_call() -> None:
    body = {"tools": [], "begin": "", "end": "", "between": ", ", "name_key": "function", "arguments_key": "parameters"}
    constraint = Constraint("calls", json.dumps(body))
    text = '{"function": "trip", "parameters": {"a": 1}}, {"function": "stay", "parameters": {}}'
    told = {one.path: text[one.start : one.end] for one in _signal.fields_in(text, constraint)}
    assert told == {
        "tool_calls[0].name": '"trip"',
        "tool_calls[0].args.a": "1",
        "tool_calls[1].name": '"stay"',
        "tool_calls[1].args": "{}",
    }


def test_prose_has_no_fields_and_neither_has_a_choice() -> None:
    words = [ScriptedMember('It is {"a": 1 } or so.', name=name) for name in "ab"]
    for constraint in (None, AUTO, Constraint("choice", '["{}"]'), Constraint("prose")):
        assert fields(words, constraint)[0] is None
    text = 'I will look. <tool_call>\n{"name": "trip", "argum'
    assert [one.path for one in _signal.fields_in(text, AUTO)] == ["tool_calls[0].name"]
    assert [one.path for one in _signal.fields_in('{"a": 1}', TOOLS_OR_JSON)] == ["a"]


def test_with_the_grammar_of_a_schema() -> None:
    pytest.importorskip("xgrammar")
    from langchain_specfuse.constraints import referee_for

    city = {"enum": ["Rome", "Paris"]}
    schema = {
        "type": "object",
        "properties": {"kind": {"const": "trip"}, "city": city, "days": {"type": "integer"}},
        "required": ["kind", "city", "days"],
        "additionalProperties": False,
    }
    constraint = Constraint("json_schema", json.dumps(schema))
    texts = [json.dumps({"kind": "trip", "city": name, "days": days}) for name, days in (("Rome", 12), ("Paris", 4))]
    members: list[Any] = [Reciter(text, name=name) for text, name in zip(texts, ("ann", "bob"), strict=True)]
    found, rounds = fields(members, constraint, referee_for(constraint))
    text = "".join(round.text for round in rounds)
    assert json.loads(text)["kind"] == "trip"
    assert {path: told["how"] for path, told in found.items()} == {"kind": "forced", "city": "voted", "days": "voted"}
    assert found["city"]["confidence"] == _signal.confidence(rounds[0])


def test_of_many_fields_the_least_sure_are_told() -> None:
    many = {f"k{k}": 0 for k in range(300)}
    sure, unsure = json.dumps(many), json.dumps(many | {"k250": 1})
    found, _ = fields([ScriptedMember(sure, name="ann"), ScriptedMember(unsure, name="bob")], max_tokens=2000)
    assert len(found) == _signal.MOST_FIELDS
    assert found["k250"]["confidence"] < 1.0
    assert len(json.dumps(found)) < 10_000
    long = json.dumps({"k" * 500: 1, "short": 2})
    assert set(fields([ScriptedMember(long, name=name) for name in "ab"])[0]) == {"short"}


# --- on the message ---------------------------------------------------------------------------------------------

NILE = ("The Nile is 6650 km long and flows north.", "The Nile is 6700 km long and flows north.")
RIVER = {
    "title": "River",
    "type": "object",
    "properties": {"river": {"type": "string"}, "km": {"type": "integer"}},
    "required": ["river", "km"],
}


def notes(message: Any) -> list[dict[str, Any]]:
    return [note["value"] for block in message.content_blocks for note in block.get("annotations", [])]


async def test_each_segment_of_an_answer_says_how_sure_the_vote_was(ensemble: Any) -> None:
    llm = ensemble(*NILE, segment_tokens=3, output_version="v1")
    found = notes(llm.invoke("How long is it?"))
    assert [round(one["confidence"], 2) for one in found] == [1.0, 0.5, 1.0]
    assert [round(one["dissent"], 2) for one in found] == [0.0, 1.0, 0.0]
    assert all("runner_up" not in one for one in found)
    always = ensemble(*NILE, segment_tokens=3, output_version="v1", runners_up=True)
    for asked in (llm.invoke("?", runners_up=True), always.invoke("?")):
        said = [one["runner_up"] and one["runner_up"]["text"] for one in notes(asked)]
        assert said == [None, " 6700 km long", None]
    whole: Any = None
    async for chunk in llm.astream("?"):
        whole = chunk if whole is None else whole + chunk
    assert notes(whole) == found
    with pytest.raises(UsageError, match="runners_up must be True or False"):
        llm.invoke("?", runners_up="all")


@pytest.mark.parametrize("version", ["v0", "v1"])
async def test_the_fields_of_an_object_are_told_once_whichever_way_it_is_asked(ensemble: Any, version: str) -> None:
    pytest.importorskip("xgrammar")
    texts = [json.dumps({"river": "Nile", "km": km}) for km in (6650, 6700)]
    llm = ensemble(*texts, segment_tokens=2, output_version=version)
    shape = llm.with_structured_output(RIVER, include_raw=True)
    wanted = {"river": {"confidence": 1.0, "how": "voted"}, "km": {"confidence": 0.5, "how": "voted"}}
    for message in (shape.invoke("?")["raw"], (await shape.ainvoke("?"))["raw"], shape.batch(["?", "?"])[1]["raw"]):
        assert message.response_metadata["specfuse"]["fields"] == wanted
    streamed = [part["raw"] for part in shape.stream("?") if "raw" in part]
    assert streamed[-1].response_metadata["specfuse"]["fields"] == wanted
    assert "fields" not in llm.invoke("?").response_metadata["specfuse"]


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_the_arguments_of_calls_have_confidences(ensemble: Any, version: str) -> None:
    pytest.importorskip("xgrammar")
    texts = [CALL % ("trip", name, 1) for name in ("Rome", "Paris")]
    tool = {
        "title": "trip",
        "description": "Plan a trip.",
        "type": "object",
        "properties": {"city": {"type": "string"}, "at": {"type": "array", "items": {"type": "integer"}}},
        "required": ["city", "at"],
    }
    llm = ensemble(*texts, segment_tokens=40, output_version=version).bind_tools([tool], tool_choice="any")
    message = llm.invoke("?")
    assert message.tool_calls[0]["args"] == {"city": "Rome", "at": [1]}
    found = message.response_metadata["specfuse"]["fields"]
    assert found["tool_calls[0].name"] == {"confidence": None, "how": "forced"}
    assert found["tool_calls[0].args.city"] == {"confidence": 0.5, "how": "voted"}
