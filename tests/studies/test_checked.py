"""The study of checks: its questions and grades, its ways to answer, and what its table says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import checked
import programs
import pytest
import rows
import rules
import sources
from cases import DEVELOPMENT, SEALED, Case, Grade
from checked import (
    CHAT,
    EQUAL,
    LEAD,
    RETRIES,
    SILENT,
    TOLD,
    Answer,
    Asker,
    Attempt,
    Texts,
)
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse import LlamaCppMember, ScriptedMember, checks

# --- questions ------------------------------------------------------------------------------------

PROMPTS = [
    ("1", "Write in capitals.", ["change_case:english_capital"], [{}]),
    (
        "2",
        "Use at most 9 words.",
        ["length_constraints:number_words"],
        [
            {"relation": "less than", "num_words": 10},
        ],
    ),
    ("3", "No commas.", ["punctuation:no_comma"], [{}]),
    (
        "4",
        "Use 300 words or more.",
        ["length_constraints:number_words"],
        [
            {"relation": "at least", "num_words": 300},
        ],
    ),
]
PROBLEM = {
    "task_id": 2,
    "text": "Write a function that doubles a number.",
    "setup": "",
    "tests": ["assert twice(1) == 2", "assert twice(3) == 6"],
}


@pytest.fixture
def data(tmp_path):
    lines = [
        {"key": key, "prompt": prompt, "instruction_id_list": names, "kwargs": values}
        for key, prompt, names, values in PROMPTS
    ]
    (tmp_path / "ifeval-even.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "mbpp-even.jsonl").write_text(
        "\n".join(json.dumps({**PROBLEM, "task_id": n, "text": f"Problem {n}"}) for n in range(60))
    )
    return tmp_path


@pytest.mark.parametrize("name", checked.SETS)
def test_no_question_is_in_two_parts_or_twice(data, name):
    of_part = {part: checked.SETS[name].cases(part, data) for part in (DEVELOPMENT, SEALED)}
    texts = [case.text for cases in of_part.values() for case in cases]
    ids = [case.id for cases in of_part.values() for case in cases]
    assert len(set(texts)) == len(texts) == len(set(ids)) > 0
    again = [case.text for case in checked.SETS[name].cases(SEALED, data)]
    assert again == [case.text for case in of_part[SEALED]]
    assert all(case.checks for case in of_part[SEALED])


def test_enough_questions_are_sealed(data):
    assert len([*rules.templates(SEALED)]) >= 240
    assert len(sources.cases(SEALED)) >= 240
    assert checked.SETS["code"].count >= 200


def test_the_second_study_asks_questions_that_the_first_did_not(data):
    for name, old in (("new-rules", "rules"), ("new-sources", "sources")):
        new = checked.asked_cases(checked.SETS[name], SEALED, data)
        asked = checked.asked_cases(checked.SETS[old], SEALED, data)
        tried = checked.asked_cases(checked.SETS[old], DEVELOPMENT, data)
        assert len(new) >= 144
        assert not {case.text for case in new} & {case.text for case in [*asked, *tried]}
        assert not {case.id for case in new} & {case.id for case in [*asked, *tried]}


def test_prompts_with_rules_that_were_looked_at_or_that_beginnings_break_are_left_out(data):
    assert [case.id for case in rules.published(data)] == ["rules ifeval 1", "rules ifeval 2"]


WORDS = st.sampled_from(
    ["light", "Sea,", "KEY!", "extraordinarily", "you", "7", "such as", "wood.", "\n- one", "cat"]
)


@given(words=st.lists(WORDS, min_size=1, max_size=30))
def test_a_text_that_keeps_its_rules_passes_their_checks_and_so_do_its_beginnings(words):
    """So the checks can cut a draft before its fault, and the grades agree with them."""
    text = " ".join(words)
    for case in rules.templates(DEVELOPMENT):
        if not case.grade(text).right:
            continue
        for end in range(len(words) + 1):
            beginning = " ".join(words[:end])
            assert all(checked.passes(check, case.text, beginning) for check in case.checks)


def test_an_empty_answer_obeys_no_rule():
    assert all(not case.grade(" \n").right for case in rules.templates(SEALED))


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Sure:\n```python\ndef twice(n):\n    return 2 * n\n```\nDone.", True),
        ("def twice(n): return 2 * n", True),
        ("```python\ndef twice(n):\n    return n + 1\n```", False),  # the visible test passes
        ("```python\ndef twice(n):\n    while True: pass\n```", False),
        ("I do not know.", False),
    ],
)
def test_a_program_is_right_if_all_tests_pass_shown_or_hidden(monkeypatch, answer, right):
    monkeypatch.setattr(programs, "TIMEOUT_S", 2)
    assert programs.passes("", PROBLEM["tests"], answer).right == right


def test_numbers_that_are_not_in_the_text_are_faults():
    known = frozenset(sources.numbers_in("It has 12,500 seats and 3 doors. 1. How many seats?"))
    assert sources.grade(known, "lookup", "12,500", "It has 12500 seats.") == Grade(True)
    assert sources.grade(known, "lookup", "12,500", "It has 3 seats.") == Grade(False, "wrong")
    assert sources.grade(known, "lookup", "12,500", "12,500 of 20,000") == Grade(
        False, "ungrounded", 1
    )
    assert sources.grade(known, "absent", "", "The text doesn't say.").right
    assert not sources.grade(known, "absent", "", "It has 3.").right
    assert sources.grade(known, "notice", "", "1. 3 doors\n2. 12,500 seats").right


# --- answers --------------------------------------------------------------------------------------


def words_of(text: str) -> Grade:
    return Grade("," not in text and bool(text), "comma" if "," in text else "")


CASES = [
    Case(f"rules {number}", "no commas", f"Question {number}?", (checks.forbids(","),), words_of)
    for number in range(4)
]


def asker(tmp_path, lead, other="One two three four."):
    members = {
        "lead": ScriptedMember(lead, name="strong"),
        "smollm2": ScriptedMember(other, name="weak"),
    }
    texts = Texts(tmp_path / "texts.jsonl", [case.id for case in CASES[:2]])
    return Asker("rules", members, texts.save), members, texts


def test_every_way_answers_every_question_once_and_a_stopped_run_continues(tmp_path):
    ask, members, texts = asker(tmp_path, "One, two three four five.")
    path, ways = tmp_path / "rules.jsonl", list(checked.SETS["rules"].ways)
    checked.ask_all(ask, "rules", ways[:2], CASES[:2], checked.stored(path, "rules"), at_once=1)
    with path.open("a") as file:
        file.write('{"way": "pair", "quest')  # killed in the middle of a line
    calls = members["lead"].draft_calls
    answers = checked.stored(path, "rules")
    checked.ask_all(ask, "rules", ways[:2], CASES[:2], answers, at_once=1)
    assert members["lead"].draft_calls == calls
    assert [len(checked.left(answers, "rules", way, CASES)) for way in ways] == [2, 2, 4, 4, 4]
    checked.ask_all(ask, "rules", ways, CASES, answers, at_once=2)
    assert answers.all == checked.stored(path, "rules").all
    assert len(answers.all) == len(path.read_text().splitlines()) == 4 * len(ways)
    by_way = checked.grouped(answers.all)
    assert all(len(own) == 4 for own in by_way.values())
    lead = by_way[LEAD]["rules 0"]
    assert not lead.final.right and lead.final.note == "comma" and not lead.final.passed
    assert lead.final.words == lead.final.tokens == lead.final.passes == 5
    assert lead.final.finish == "stop" and lead.final.shares == {"strong": 1.0}
    # A scripted member says the same each time, and cannot begin in another way.
    assert len(by_way[RETRIES]["rules 0"].attempts) == 5
    assert by_way["checked"]["rules 0"].final.failed == "forbids(',')"
    assert not by_way["checked"]["rules 0"].final.right
    pair = by_way["checked pair"]["rules 0"].final
    assert pair.right and pair.passed and pair.rejected >= 1 and pair.passes > pair.tokens
    text = path.read_text()
    assert "One, two" not in text and "three" not in text
    assert texts.export(CASES, tmp_path / "pairs.md") == 2


def test_every_way_answers_problems(data, tmp_path):
    right = "```python\ndef twice(n):\n    return 2 * n\n```"
    members = {
        "lead": ScriptedMember(right, name="strong"),
        "smollm2": ScriptedMember("I do not know.", name="small"),
        "gemma": ScriptedMember("```python\ndef twice(n):\n    return n\n```", name="other"),
    }
    ask = Asker("code", members, lambda *_: None)
    cases = checked.SETS["code"].cases(SEALED, data)[:1]
    ways = list(checked.SETS["code"].ways)
    answers = checked.stored(tmp_path / "code.jsonl", "code")
    checked.ask_all(ask, "code", ways, cases, answers, at_once=1)
    assert all(answer.final.right and not answer.final.failed for answer in answers.all)
    by_way = {answer.way: answer for answer in answers.all}
    assert by_way["samples"].total("passes") > by_way["checked"].total("passes")
    assert by_way["checked gemma"].final.shares == {"strong": 1.0}


def test_pairs_do_not_tell_which_is_which_but_the_key_does(tmp_path):
    _, _, texts = asker(tmp_path, "")
    for way in (LEAD, "pair", "checked"):
        for case in CASES:
            texts.save(way, case.id, f"said by {way}")
    assert texts.export(CASES, tmp_path / "pairs.md") == 2  # the others are not kept
    shown = (tmp_path / "pairs.md").read_text()
    key = json.loads((tmp_path / "pairs.key.json").read_text())
    first = shown.split("## 2")[0]
    told = first.split("### A\n\n")[1].split("\n")[0]
    assert told == f"said by {key['1']['A']}" and "pair" not in shown
    assert {key["1"]["A"], key["1"]["B"]} == {LEAD, "checked"}


# --- tables ---------------------------------------------------------------------------------------


def answered(way, question, *attempts, limits_length=False):
    return Answer(way, question, "no commas", limits_length, attempts)


GOOD = Attempt(True, words=50, tokens=60, passes=60, seconds=6.0, first_s=1.0, finish="stop")
BAD = replace(GOOD, right=False, note="comma", passed=False)


def test_the_table_has_wins_losses_and_costs_against_the_lead():
    answers = [answered(LEAD, f"q{n}", BAD if n < 6 else GOOD) for n in range(8)]
    answers += [answered("checked", f"q{n}", replace(GOOD, passes=66)) for n in range(8)]
    row = next(row for row in checked.table("rules", answers) if row["way"] == "checked")
    assert (row["good"], row["questions"], row["passes"]) == (8, 8, 1.1)
    assert row["against lead"]["won"] == 6 and row["against lead"]["p"] == 0.03125
    assert row["first text"] == 1.0 and row["passes per token"] == 1.1


def test_the_table_of_the_docs_is_made_from_the_results(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "docs"))
    import tables

    answers = [answered(LEAD, "q", BAD), answered("checked", "q", GOOD)]
    rows.show(list(checked.table("rules", answers)), tmp_path / "checked.json", "rules")
    results = json.loads((tmp_path / "checked.json").read_text())
    assert "| **with checks** | 1 of 1 | 1 | 0 | 1 | 0 | 1 | 1.00 times |" in tables.checked(
        results, name="rules"
    )

    rows.show(list(checked.table("rules", answers)), tmp_path / "checked.json", "rules, timed")
    results = json.loads((tmp_path / "checked.json").read_text())
    assert "| 1.00 times | 6.0 | 1.0 s |" in tables.checked(results, name="rules")


def test_the_tables_of_the_second_study_have_its_ways(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "docs"))
    import tables

    answers = [answered(way, "q", BAD) for way in (LEAD, CHAT, SILENT)]
    answers += [answered("checked", "q", GOOD), answered(TOLD, "q", replace(GOOD, requests=2))]
    rows.show(list(checked.table("new-rules", answers)), tmp_path / "again.json", "new-rules")
    results = json.loads((tmp_path / "again.json").read_text())
    own = tables.checked(results, name="new-rules")
    assert "| **with checks** | 1 of 1 | 1 | 0 | 0 | 1 | 0 | 1 | 1.00 times |" in own
    assert "reasons" not in own
    told = tables.checked(results, name="new-rules", base="chat")
    assert "told the reasons** | 1 of 1 | 1 | 0 | 2.0 | 0 | 1 | 0 | 1 | 1.00 times |" in told


def test_shares_are_compared_with_those_of_the_first_study():
    answers = [answered(way, f"q{n}", GOOD) for way in (LEAD, "checked") for n in range(280)]
    found = checked.against_first(
        "new-rules", [*checked.table("new-rules", answers)], checked.FIRST
    )
    assert found["kept"] == "280 of 280, then 284 of 284, p 1"
    assert found["good"].startswith("280 of 280, then 257 of 284, p ") and "e-" in found["good"]
    assert rows.fisher(3, 4, 1, 4) == pytest.approx(34 / 70)


@pytest.mark.parametrize(
    ("attempt", "limits_length", "is_good"),
    [
        (replace(GOOD, words=34), False, False),
        (replace(GOOD, words=35), False, True),
        (replace(GOOD, words=5), True, True),
        (replace(GOOD, failed="forbids(',')"), False, False),
        (replace(GOOD, finish="check"), False, False),
        (BAD, False, False),
    ],
)
def test_an_answer_that_is_short_or_was_ended_by_a_check_is_not_good(
    attempt, limits_length, is_good
):
    answer = answered("checked", "q", attempt, limits_length=limits_length)
    assert checked.is_good("rules", answer, answered(LEAD, "q", GOOD)) == is_good


def test_the_table_counts_answers_much_shorter_than_the_leads():
    short = replace(GOOD, words=34)
    answers = [answered(LEAD, f"q{n}", GOOD) for n in range(3)]
    answers += [answered("checked", f"q{n}", short, limits_length=n == 2) for n in range(3)]
    row = next(row for row in checked.table("rules", answers) if row["way"] == "checked")
    assert (row["kept"], row["good"], row["short"]) == (3, 1, 2)


def test_answers_of_a_chat_model_are_compared_with_its_own_without_checks():
    answers = [answered(LEAD, "q", BAD), answered(CHAT, "q", GOOD), answered(TOLD, "q", GOOD)]
    answers.append(answered(SILENT, "q", BAD))
    rows = {row["way"]: row for row in checked.table("new-rules", answers)}
    assert rows[TOLD]["against chat, silent"]["won"] == 1 and "against lead" not in rows[TOLD]
    assert rows[TOLD]["against chat"]["won"] == 0 and rows[SILENT]["passes"] == 1.0


def test_a_chat_model_is_asked_in_messages_and_its_requests_are_counted(tmp_path):
    ask = Asker("new-rules", {"lead": ScriptedMember("One two.", name="a")}, lambda *_: None)
    attempt = ask.answer(CHAT, CASES[0]).final
    assert attempt.right and attempt.requests == 1 and attempt.passes >= 2


def test_a_chat_model_is_told_why_it_was_refused_in_one_way_only(tmp_path):
    def writes(query):
        told = any("contains ','" in turn.text for turn in query.turns)
        return "One two three four." if told else "One, two three four."

    ask = Asker("new-rules", {"lead": ScriptedMember(writes, name="a")}, lambda *_: None)
    told = ask.answer(TOLD, CASES[0]).final
    assert told.right and told.requests == 2 and told.rejected == 1
    assert ask.answer(SILENT, CASES[0]).final.failed


def test_retries_at_equal_passes_cost_at_least_what_checked_answers_cost():
    retried = [answered(RETRIES, f"q{n}", BAD, BAD, GOOD) for n in range(4)]
    dear = [answered("checked", f"q{n}", replace(GOOD, passes=61)) for n in range(4)]
    cut = checked.with_equal_passes([*retried, *dear])
    assert {len(answer.attempts) for answer in cut} == {2} and {item.way for item in cut} == {EQUAL}
    assert not any(answer.final.right for answer in cut)
    cheap = [answered("checked", f"q{n}", replace(GOOD, passes=59)) for n in range(4)]
    assert {len(item.attempts) for item in checked.with_equal_passes([*retried, *cheap])} == {1}


def test_a_retried_answer_is_shown_when_it_has_passed():
    assert answered(RETRIES, "q", BAD, GOOD).first_s == 12.0
    assert answered(RETRIES, "q", GOOD).first_s == 6.0
    assert answered("checked", "q", GOOD).first_s == 1.0
    assert answered(RETRIES, "q", BAD, GOOD, BAD).final is GOOD
    assert answered(RETRIES, "q", BAD, replace(BAD, words=1)).final is BAD


def test_a_metered_member_is_a_member_whose_tokens_are_counted():
    from langchain_core.messages import HumanMessage
    from metered import Meter, Metered

    from langchain_specfuse import SpecFuseChatModel

    meter = Meter()
    members = [Metered(ScriptedMember(text, name=text[0]), meter) for text in ("A b c.", "D e.")]
    SpecFuseChatModel(members=members, lead=None).invoke([HumanMessage("What?")])
    assert meter.of("What?").passes >= 5 + 2  # both drafts, and both votes
    assert meter.of("Something else").passes == 0


@pytest.mark.real
@pytest.mark.long
def test_a_real_model_keeps_a_rule_that_it_breaks_alone(tmp_path):
    from langchain_specfuse.demo import SMOLLM2, file_of

    file = file_of(SMOLLM2)
    lead = LlamaCppMember(file, name="lead", **SMOLLM2.options)
    ask = Asker("rules", {"lead": lead}, lambda *_: None)
    cases = [case for case in rules.templates(DEVELOPMENT) if case.kind == "no commas"]
    answers = checked.stored(tmp_path / "a.jsonl", "rules")
    checked.ask_all(ask, "rules", [LEAD, "checked"], cases, answers, at_once=1)
    alone, kept = (answer.final for answer in answers.all)
    assert not alone.right and kept.right and kept.rejected
    assert Path(tmp_path / "a.jsonl").read_text().count("\n") == 2
