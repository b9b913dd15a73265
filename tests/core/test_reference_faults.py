"""The faults of the method's published reference code, as far as the pure core can show them.

The faults of tokenization, masks and caches are tested with the members.
"""

import math
from itertools import pairwise

import pytest

from langchain_specfuse.core.answer import Answer, is_safe, kept_tokens
from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.values import DraftJob, Panelist, ScoreJob, Segment
from langchain_specfuse.core.voting import raw_score, win_rates
from langchain_specfuse.members.scripted import ScriptedMember

from .play import QUERY, answering, play, speakers


@pytest.mark.parametrize("whole", ["The answer is 42", "4", "42", "Yes"])
def test_fault_1_the_last_word_of_an_answer_is_cut(whole):
    assert play(speakers(a=whole)).text == whole
    assert play(speakers(a=whole, b="Something else entirely, no doubt"), Settings(segment_tokens=1)).text == whole


CODE = "def f(x):\n    if x:\n\t\treturn  x\n\n\n| a | b |\n|---|---|\n- one\n  - two  "


def test_fault_2_white_space_is_stripped_and_only_the_space_is_a_boundary():
    for size in (1, 2, 5):
        assert play(speakers(a=CODE), Settings(segment_tokens=size)).text == CODE
    assert is_safe("one\ntwo", 4)
    assert is_safe("天空", 1)
    assert not is_safe("x\n    y", 2)  # indentation is not torn from its line break


def test_fault_3_an_incomplete_character_becomes_a_space():
    # "天" and half of "空": the half is held back, nothing replaces it.
    assert kept_tokens("天", [0, 1, 1], limit=3) == 2
    answer = Answer(stop=(), budget=9).plus(Segment("天", tokens={"a": (1, 2)})).plus(Segment("空", tokens={"a": (3,)}))
    assert answer.text == "天空"


def test_fault_4_ending_is_judged_as_the_text_of_a_full_stop():
    # The end is an event with its own probability: a draft that only ends has exactly one number.
    played = play(speakers(a="The sky is blue", b="The sky is blue today"), Settings(segment_tokens=4))
    jobs = [job for name, job in played.asked(ScoreJob) if name == "b"]
    ended = next(c for job in jobs for c in job.candidates if c.ended)
    assert (ended.text, ended.authors) == ("The sky is blue", ("a",))
    assert len(answering(ScriptedMember("x"))(jobs[0], 1).logprobs[0]) == 4 + 1
    assert raw_score("mean_prob", [math.log(0.25)], "") == 0.25
    assert raw_score("logprob_per_byte", [-3.0], "") == -3.0


def test_fault_5_the_writers_own_tokens_are_lost_at_the_seam():
    played = play(speakers(a="The sky is blue", b="The sea is blue"), Settings(segment_tokens=2))
    for round in played.rounds:
        assert round.segment.tokens[round.winner] == round.drafts[round.winner].tokens
    last = played.asks[-1]
    assert all(job.answer[0].tokens for job in last.jobs.values())


def test_fault_8_feedback_is_off_by_default():
    assert Method().feedback != "off"
    assert Method().learning_rate > 0


def test_fault_8_feedback_is_a_no_op_for_two_members():
    rewards = win_rates({"a": [0.9, 0.1], "b": [0.6, 0.4]}, [["a"], ["b"]])
    assert rewards[0] > rewards[1]
    last = play(speakers(a="one two three four", b="one six three four"), Settings(segment_tokens=1)).rounds[-1]
    assert len(last.weights) == 2


def test_fault_8_weights_are_updated_before_they_are_used():
    far, light, looks = "because it is far away.", "because light scatters.", "since light scatters."
    texts = {"a": f"The sky is blue {far}", "b": f"The sky is blue {light}", "c": f"The sky looks blue {looks}"}
    played = play(speakers(**texts), Settings(segment_tokens=2))
    for before, after in pairwise(played.rounds):
        assert after.weights_before == before.weights
    moved = [round for round in played.rounds if round.weights != round.weights_before]
    assert moved
    for round in moved:
        assert all(
            total == pytest.approx(sum(round.weights_before[j] * row[name] for j, row in round.votes.items()))
            for name, total in round.totals.items()
        )


def test_fault_9_verify_only_members_never_see_the_question():
    panel = [Panelist("a"), Panelist("b"), Panelist("judge", drafts=False)]
    played = play(speakers(a="one two", b="one three", judge="one two"), Settings(segment_tokens=1), panel)
    jobs = [job for name, job in played.asked(ScoreJob) if name == "judge"]
    assert jobs
    for job in jobs:
        assert job.query.turns == QUERY.turns
        assert "".join(segment.text for segment in job.answer) == "one"


def test_fault_10_sampling_is_fixed_and_without_a_seed():
    played = play(speakers(a="one two", b="one three"))
    jobs = [job for _, job in played.asked(DraftJob)]
    assert all(job.sampling == Settings().sampling and isinstance(job.sampling.seed, int) for job in jobs)
