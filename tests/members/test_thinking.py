"""Reasoning models: they think for themselves before their first word, and nobody else's answer changes."""

import pytest

from langchain_specfuse.constraints import referee_for
from langchain_specfuse.core.values import (
    Candidate,
    Constraint,
    DraftJob,
    Failure,
    Sampling,
    ScoreJob,
    Segment,
    Settings,
    Turn,
)
from langchain_specfuse.members._template import Template
from langchain_specfuse.members._thinking import Thinking, Thought
from langchain_specfuse.members._thoughts import with_thought

from . import tiny
from .test_masking import BOUND, following
from .test_transformers_cache import NEAR, Doubled

BODY = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
KNOWS = (  # says nothing before the thought; an empty one where thinking is switched off
    BODY + "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not "
    "enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
OPENS = BODY.replace(".split('</think>')[-1]", "") + "<|im_start|>assistant\n{{ '<think>\n' }}"
TURNS = (Turn("user", "Why?"),)
HEAD = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def template(own, **kwargs):
    return Template(tiny.tokenizer_of("bytes", own), "m", None if own else "plain", kwargs)


def job_for(query, answer=(), **more):
    return DraftJob(query, answer, 6, 40, Sampling(), **more)


# --- templates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [KNOWS, OPENS])
def test_a_template_that_knows_thoughts_opens_or_empties_one(own):
    assert template(own).prompt(TURNS) == HEAD + "<think>\n"
    assert template(own).prompt(TURNS, think=False) == HEAD + "<think>\n\n</think>\n\n"


def test_who_has_switched_thinking_off_in_the_template_is_obeyed():
    assert template(KNOWS, enable_thinking=False).prompt(TURNS) == HEAD + "<think>\n\n</think>\n\n"
    member = tiny.member("llama", 1, chat_template=KNOWS, chat_template_kwargs={"enable_thinking": False})
    assert member.draft([job_for(tiny.query())])[0].thought == ""


@pytest.mark.parametrize("own", [tiny.CHATML, tiny.INST, None])
def test_a_template_that_does_not_is_untouched(own):
    assert not template(own).thinks
    assert template(own).prompt(TURNS) == template(own).prompt(TURNS, think=False)
    assert "think>" not in template(own).prompt(TURNS)


def test_thoughts_of_earlier_turns_are_left_to_the_template():
    turns = (*TURNS, Turn("assistant", "<think>\nhm\n</think>So."), *TURNS)
    assert "hm" not in template(KNOWS).prompt(turns)


# --- thoughts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [KNOWS, OPENS])
def test_the_thought_is_told_with_the_first_draft_and_is_no_part_of_the_answer(own):
    query = tiny.query("Why?")
    text = "Let me see.\n</think>\n\nThe sky is blue because of the air."
    member = following(query, text, chat_template=own)
    drafts = []
    told = tiny.answered([member], query, Settings(), after=lambda ask, replies: drafts.extend(replies.values()))
    assert tiny.text_of(told) == "The sky is blue because of the air." and told[-1].finish == "stop"
    assert [draft.thought for draft in drafts] == ["Let me see."] + [""] * (len(drafts) - 1) and len(drafts) > 1
    assert told[0].efforts["draft"]["wishful"].prompt == len(member._prompt_ids(query.turns))
    assert not member._memos


def test_an_empty_thought_and_one_that_ends_the_turn_are_closed():
    for text in ("</think>\n\nSo.", ""):
        query = tiny.query("Why?")
        member = following(query, text, chat_template=KNOWS)
        (draft,) = member.draft([job_for(query)])
        assert draft.thought == ""
        assert member.words.decode(member._memos[query.id].prompt).endswith("<think>\n\n</think>\n\n")


def test_a_thought_without_an_end_is_closed_when_its_budget_is_used():
    query = tiny.query("Why?")
    member = following(query, "one two three four five six seven eight", chat_template=OPENS, thinking_tokens=9)
    (draft,) = member.draft([job_for(query)])
    assert draft.thought and "one two three four".startswith(draft.thought)
    prompt = member.words.decode(member._memos[query.id].prompt)
    assert prompt.endswith(f"<think>\n{draft.thought}\n</think>\n\n")


def test_a_thought_that_repeats_itself_is_closed():
    query = tiny.query("Why?")
    member = following(query, "so it is blue and " * 200, chat_template=OPENS, thinking_tokens=1500)
    (draft,) = member.draft([job_for(query)])
    assert 40 < len(draft.thought) < 1200


def test_no_budget_means_no_thought():
    member = tiny.member("llama", 1, chat_template=KNOWS, thinking_tokens=0)
    query = tiny.query("Why?")
    (draft,) = member.draft([job_for(query)])
    assert draft.thought == "" and member.spec["thinking_tokens"] == 0
    assert member.words.decode(member._memos[query.id].prompt).endswith("<think>\n\n</think>\n\n")
    member.forget(query.id)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral", "mamba"])
def test_replies_depend_on_their_job_alone(arch):
    """Whether it has thought before, lost everything, or is asked to score first."""
    member = tiny.member(arch, 1, chat_template=OPENS, thinking_tokens=12)
    doubled = Doubled(member)
    answer = tiny.relayed([doubled, tiny.member("phi3", 1)], tiny.query(), 4, turns=4)
    assert doubled.worst < NEAR and doubled.compared == 8
    assert any("wishful" not in segment.tokens for segment in answer)
    query = tiny.query()
    score = ScoreJob(query, (Segment("The"),), (Candidate(" sky", False, ()), Candidate("", True, ())))
    first = member.score([score])[0]
    draft = member.draft([job_for(query)])[0]
    assert tiny.difference(first, member.score([score])[0]) < NEAR
    member.forget(query.id)
    again = member.draft([job_for(query)])[0]
    assert (again.text, again.thought) == (draft.text, draft.thought) and draft.thought
    member.forget(query.id)


def test_a_crowd_thinks_together_and_everyone_as_alone():
    member = tiny.member("llama", 1, chat_template=OPENS, thinking_tokens=20)
    apart = tiny.member("llama", 1, chat_template=OPENS, thinking_tokens=20)
    jobs = [job_for(tiny.query("Sky. " * (1 + 2 * k)), ((Segment("Well"),) if k % 2 else ())) for k in range(5)]
    for job, reply in zip(jobs, member.draft(jobs), strict=True):
        (alone,) = apart.draft([job])
        assert tiny.difference(reply, alone) < NEAR and reply.thought == alone.thought
    small = tiny.member("llama", 1, chat_template=OPENS, thinking_tokens=20, cache_bytes=1)
    assert [reply.thought for reply in small.draft(jobs)] == [reply.thought for reply in member.draft(jobs)]


def test_under_a_constraint_the_thought_is_free_and_the_answer_is_not():
    query = tiny.query("Why?", constraint=BOUND["choice"])
    member = following(query, "Is it Paris? No.\n</think>\n\nNew Delhi", chat_template=KNOWS)
    told = tiny.answered([member], query)
    assert tiny.text_of(told) == "New Delhi"
    wild = tiny.query("Why?", constraint=Constraint("regex", "[0-9]{3,6}"))
    told = tiny.answered([tiny.member("llama", 1, chat_template=OPENS, thinking_tokens=15)], wild)
    assert tiny.text_of(told).isdigit() and referee_for(wild.constraint).may_end(tiny.text_of(told))


def test_a_thought_leaves_room_for_an_answer():
    made = {"max_position_embeddings": 96}
    member = tiny.member("llama", 1, made_with=made, chat_template=OPENS, thinking_tokens=500)
    query = tiny.query("Why?")
    (draft,) = member.draft([job_for(query)])
    memo = member._memos[query.id]
    assert len(memo.prompt) < 96 - 8 and draft.text


def test_a_failure_while_thinking_leaves_nothing_half_done(monkeypatch):
    member, query = tiny.member("llama", 1, chat_template=OPENS, thinking_tokens=8), tiny.query()
    whole = Thinking._take

    def fails(self, thought: Thought, token: int) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(Thinking, "_take", fails)
    (reply,) = member.draft([job_for(query)])
    assert isinstance(reply, Failure) and "gone" in reply.message
    assert not member._memos and not member.store.rows
    monkeypatch.setattr(Thinking, "_take", whole)
    assert member.draft([job_for(query)])[0].thought


def test_the_mark_may_be_a_special_token():
    model, tokenizer = tiny.made("llama", 1, chat_template=OPENS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]}, False)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    member = tiny.TransformersMember(model, tokenizer, name="wishful", thinking_tokens=10)
    query = tiny.query("Why?")
    (draft,) = member.draft([job_for(query)])
    end = tokenizer.convert_tokens_to_ids("</think>")
    assert end in member._memos[query.id].prompt and "think>" not in draft.thought
    assert with_thought("x<think>", True) == "x<think>"


def test_who_only_votes_does_not_think():
    query, draft = tiny.query(), Candidate(" The sky", False, ("b",))
    voter, writer = (tiny.member("llama", 1, chat_template=OPENS, thinking_tokens=12) for _ in range(2))
    votes = ScoreJob(query, (), (draft,), thinks=False)
    voted = voter.score([votes])[0]
    assert voter._memo(query).thought == "" and voter.words.decode(voter._memo(query).prompt).endswith("</think>\n\n")
    assert voted.logprobs != writer.score([ScoreJob(query, (), (draft,))])[0].logprobs
    voter.forget(query.id)
    assert voter.score([votes])[0].logprobs == voted.logprobs
