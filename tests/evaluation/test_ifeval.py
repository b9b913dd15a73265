"""IFEval's instructions: hand-written answers that follow each one, and some that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import builtin, ifeval

DATA = Path(__file__).parents[1] / "data" / "ifeval-even.jsonl"
LONG = "The weather today is rather nice and everybody walks in the park with their children"
GERMAN = "Das Wetter ist heute sehr schön, und alle Leute gehen mit ihren Kindern in den Park."

Case = tuple[dict[str, Any], list[str], list[str]]
CASES: dict[str, list[Case]] = {
    "keywords:existence": [({"keywords": ["mom", "C++"]}, ["Mom likes c++."], ["Mom likes C.", "I like C++."])],
    "keywords:frequency": [
        ({"keyword": "knock", "frequency": 2, "relation": "at least"}, ["Knock, knock!", "knock KNOCK knock"],
         ["knock"]),
        ({"keyword": "knock", "frequency": 2, "relation": "less than"}, ["knock", "none"], ["Knock, knock!"]),
    ],
    "keywords:forbidden_words": [({"forbidden_words": ["rock", "dead"]}, ["a rocket in a deadline"],
                                  ["A Rock.", "not dead"])],
    "keywords:letter_frequency": [
        ({"letter": "#", "let_frequency": 2, "let_relation": "at least"}, ["# a #"], ["#"]),
        ({"letter": "T", "let_frequency": 2, "let_relation": "less than"}, ["tea", "cow"], ["Tot"]),
    ],
    "language:response_language": [({"language": "de"}, [GERMAN, "123 456"], [LONG]),
                                   ({"language": "ko"}, ["오늘 날씨가 정말 좋습니다. 공원에 갑시다."], [GERMAN])],
    "length_constraints:number_sentences": [
        ({"num_sentences": 3, "relation": "at least"}, ["One. Two! Three?", "It is. It was.\nIt will be."],
         ["Dr. Who and Mr. X came at 3.50 p.m. today. They left.", "One. Two."]),
        ({"num_sentences": 3, "relation": "less than"}, ["One. Two."], ["One. Two. Three."]),
    ],
    "length_constraints:number_paragraphs": [
        ({"num_paragraphs": 3}, ["a\n***\nb\n***\nc", "***\na\n***\nb\n***\nc\n***"],
         ["a\n***\nb", "a\n\nb\n\nc", "a\n***\n***\nb\n***\nc"])],
    "length_constraints:number_words": [
        ({"num_words": 4, "relation": "at least"}, ["one two, three - four"], ["one two three"]),
        ({"num_words": 4, "relation": "less than"}, ["one two three"], ["one two three four"])],
    "length_constraints:nth_paragraph_first_word": [
        ({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "elm"},
         ["Oak is one.\n\nElm, too.", 'a\n\n"Elm" is'], ["Oak.\n\nAn elm.", "elm\n\noak", "a\n\nelm\n\nc", "elm"])],
    "detectable_content:number_placeholders": [({"num_placeholders": 2}, ["Dear [name], at [place]"], ["Dear [name]"])],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, ["Bye.\nP.S. more", "x\np. s. y"], ["Bye. PS more", "Bye."]),
        ({"postscript_marker": "P.P.S"}, ["Bye.\nP.P.S more", "p.p.s. x"], ["Bye.\nP.S. more"])],
    "detectable_format:number_bullet_lists": [
        ({"num_bullets": 2}, ["* one\n* two", "- one\n  - two", "text\n* one\n- two"],
         ["* one", "* one\n* two\n* three", "**bold**\n* one"])],
    "detectable_format:constrained_response": [({}, ["My answer is yes.", "Well. My answer is maybe."],
                                                ["yes", "My answer is yes", "My answer is no, thanks."])],
    "detectable_format:number_highlighted_sections": [
        ({"num_highlights": 2}, ["*one* and *two*", "**bold** and *it*"], ["*one*", "**bold** it", "* * and **"])],
    "detectable_format:multiple_sections": [
        ({"section_spliter": "SECTION", "num_sections": 2}, ["SECTION 1\na\nSECTION 2\nb"],
         ["SECTION 1\na", "Section 1\na\nSection 2\nb", "SECTION one\nSECTION two"])],
    "detectable_format:json_format": [({}, ['{"a": 1}', '```json\n{"a": [1]}\n```', "[1, 2]"],
                                       ["{a: 1}", 'Here: {"a": 1}', "```json\n{\n```"])],
    "detectable_format:title": [({}, ["<<A title>>\ntext"], ["<A title>", "<<>>", "<< >>", "<<a\nb>>"])],
    "combination:two_responses": [({}, ["one\n******\ntwo", "******one******two"],
                                   ["one", "same******same", "a******b******c", "a************b"])],
    "combination:repeat_prompt": [({"prompt_to_repeat": "Say hi."}, ["say HI. Hi!"], ["Hi! Say hi.", "Say hello."])],
    "startend:end_checker": [({"end_phrase": "That is all."}, ['x that is all."', "That is ALL.\n"],
                              ["That is all. Bye.", "x"])],
    "startend:quotation": [({}, ['"all of it"', ' "a" and "b" '], ['"open', 'x "a"', '"'])],
    "change_case:capital_word_frequency": [
        ({"capital_frequency": 2, "capital_relation": "at least"}, ["GO NOW", "A well-KNOWN U.S. BIG-DEAL"],
         ["GO now", "Go Now"]),
        ({"capital_frequency": 2, "capital_relation": "less than"}, ["GO now", "x"], ["GO NOW"])],
    "change_case:english_capital": [({}, [LONG.upper()], [LONG, LONG.upper() + " x", GERMAN.upper()])],
    "change_case:english_lowercase": [({}, [LONG.lower()], [LONG, GERMAN.lower()])],
    "punctuation:no_comma": [({}, ["a; b."], ["a, b"])],
}  # fmt: skip

FLAT = [(name, *case) for name, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("name", "kwargs", "follow", "break_"), FLAT, ids=[row[0] for row in FLAT])
def test_an_instruction_is_followed_or_not(name, kwargs, follow, break_):
    if name.startswith(("language", "change_case:english")):
        pytest.importorskip("langdetect")
    assert [answer for answer in follow if not ifeval.followed(name, answer, kwargs)] == []
    assert [answer for answer in break_ if ifeval.followed(name, answer, kwargs)] == []
    assert not ifeval.followed(name, " \n", kwargs)


def test_every_instruction_of_the_data_has_a_rule_and_cases():
    lines = [json.loads(line) for line in DATA.read_text().splitlines()]
    found = {name for line in lines for name in line["instruction_id_list"]}
    assert found == set(CASES) == set(ifeval.RULES)
    for line in lines:  # and the rules take the arguments that occur
        for name, kwargs in zip(line["instruction_id_list"], line["kwargs"], strict=True):
            assert ifeval.followed(name, LONG, kwargs) in (True, False)


def test_a_prompt_is_right_if_all_its_instructions_are_followed():
    task = builtin.if_eval(DATA)
    question = next(q for q in task.questions if q.id == "1012")
    start = question.facts["kwargs"][0]["prompt_to_repeat"]
    both, one = task.grade(question, f"{start}\n<<Leaving>>"), task.grade(question, "<<Leaving>>")
    parts = ["combination:repeat_prompt#0", "detectable_format:title#1"]
    assert (both.score, dict(both.parts)) == (1.0, dict.fromkeys(parts, True))
    assert (one.score, list(one.parts.values())) == (0.0, [False, True])
    assert one.note == "not followed: combination:repeat_prompt"


def test_a_language_is_told_the_same_every_time():
    pytest.importorskip("langdetect")
    assert {ifeval.language_of("Hola amigo") for _ in range(10)} == {ifeval.language_of("Hola amigo")}


def test_an_instruction_without_a_rule_is_told(tmp_path):
    with pytest.raises(UsageError, match="no rule for the instruction 'new:one'"):
        ifeval.followed("new:one", "x", {})
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"key": 1, "prompt": "p", "instruction_id_list": ["new:one"], "kwargs": [{}]}))
    with pytest.raises(UsageError, match="no rule for new:one"):
        builtin.if_eval(path)
