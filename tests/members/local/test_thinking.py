"""Reasoning models reason before their first word, and other models' answers are unchanged."""

import pytest

from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import (
    Candidate,
    DraftJob,
    Failure,
    Sampling,
    ScoreJob,
    Segment,
    Turn,
)
from langchain_specfuse.members.text.templates import Template

from .. import tiny
from ..tiny import NEAR

BODY = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
KNOWS = (  # opens no reasoning block, but writes an empty one if reasoning is switched off
    BODY
    + "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not "
    "enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
OPENS = BODY.replace(".split('</think>')[-1]", "") + "<|im_start|>assistant\n{{ '<think>\n' }}"
HARMONY = (  # channels like gpt-oss's
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}{% if m.thinking %}<|channel|>analysis"
    "<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
OWN_TAGS = (  # tags of its own, opened by the prompt
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]"
    "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant][THINK]{% endif %}"
)
TURNS = (Turn("user", "Why?"),)
HEAD = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
TAGS = ("<think>\n", "\n</think>\n\n", "<think>\n\n</think>\n\n")
FINAL = "<|channel|>final<|message|>"
MARKS = {  # template -> prompt, mark before reasoning, mark after it, mark of empty reasoning
    KNOWS: (HEAD, *TAGS),
    OPENS: (HEAD, *TAGS),
    HARMONY: (
        "<|start|>user<|message|>Why?<|end|><|start|>assistant",
        *("<|channel|>analysis<|message|>", f"<|end|><|start|>assistant{FINAL}", FINAL),
    ),
    OWN_TAGS: ("[user]Why?[assistant]", "[THINK]", "[/THINK]", "[THINK][/THINK]"),
}


def template(source, **kwargs):
    return Template(tiny.tokenizer_of("bytes", source), "m", None if source else "plain", kwargs)


def job_for(query, answer=()):
    return DraftJob(query, answer, 6, 40, Sampling())


def thinker(arch="llama", tokens=12, **options):
    return tiny.member(arch, 1, chat_template=OPENS, thinking_tokens=tokens, **options)


def prompt_of(member, query):
    """Return everything that the member has read before the answer, including its reasoning."""
    return member.words.decode(member.states[query.id].context.prompt)


# --- templates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", MARKS)
def test_a_template_with_reasoning_opens_a_block_or_leaves_it_empty(source):
    head, before, _, none = MARKS[source]
    assert template(source).prompt(TURNS) == head + before
    assert template(source).prompt(TURNS, think=False) == head + none


def test_reasoning_can_be_switched_off_in_the_template():
    assert template(KNOWS, enable_thinking=False).prompt(TURNS) == HEAD + "<think>\n\n</think>\n\n"
    member = tiny.member(
        "llama", 1, chat_template=KNOWS, chat_template_kwargs={"enable_thinking": False}
    )
    assert member.draft([job_for(tiny.query())])[0].thought == ""


@pytest.mark.parametrize("source", [tiny.CHATML, tiny.INST, None])
def test_a_template_without_reasoning_is_unchanged(source):
    assert template(source).marks is None
    assert template(source).prompt(TURNS) == template(source).prompt(TURNS, think=False)
    assert "think>" not in template(source).prompt(TURNS)


# --- thoughts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", MARKS)
def test_reasoning_comes_with_the_first_draft_and_is_not_part_of_the_answer(source):
    query, text = (
        tiny.query("Why?"),
        f"Let me see.{MARKS[source][2]}The sky is blue because of the air.",
    )
    member, drafts = tiny.wishful(query, text, chat_template=source), []
    rounds = tiny.answered(
        [member], query, Settings(), after=lambda ask, replies: drafts.extend(replies.values())
    )
    assert (
        tiny.text_of(rounds) == "The sky is blue because of the air."
        and rounds[-1].finish == "stop"
    )
    assert [draft.thought for draft in drafts] == ["Let me see."] + [""] * (
        len(drafts) - 1
    ) and len(drafts) > 1
    assert rounds[0].efforts["draft"]["wishful"].prompt == member.token_count(query.turns)


@pytest.mark.parametrize("text", ["</think>\n\nSo.", ""])
def test_empty_reasoning_and_reasoning_that_ends_the_turn_are_closed(text):
    member = tiny.wishful(query := tiny.query("Why?"), text, chat_template=KNOWS)
    assert member.draft([job_for(query)])[0].thought == ""
    assert prompt_of(member, query).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("source", MARKS)
def test_reasoning_is_closed_when_its_budget_is_used_up(source):
    query, text = tiny.query("Why?"), "one two three four five six seven eight"
    member = tiny.wishful(query, text, chat_template=source, thinking_tokens=9)
    (draft,) = member.draft([job_for(query)])
    assert draft.thought and "one two three four".startswith(draft.thought)
    assert prompt_of(member, query).endswith(f"{MARKS[source][1]}{draft.thought}{MARKS[source][2]}")


def test_reasoning_that_repeats_itself_is_closed():
    query = tiny.query("Why?")
    member = tiny.wishful(
        query, "so it is blue and " * 60, chat_template=OPENS, thinking_tokens=600
    )
    assert 40 < len(member.draft([job_for(query)])[0].thought) < 800


def test_no_budget_means_no_reasoning():
    member = tiny.member("llama", 1, chat_template=KNOWS, thinking_tokens=0)
    (draft,) = member.draft([job_for(query := tiny.query("Why?"))])
    assert draft.thought == "" and member.spec["thinking_tokens"] == 0
    assert prompt_of(member, query).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3-next"])
def test_replies_depend_on_their_job_alone(arch):
    """Whether the member has reasoned before, lost everything, or scored first makes no
    difference."""
    compared = tiny.Compared(thinker(arch))
    tiny.relayed([compared, tiny.member("phi3", 1)], tiny.query(), 4, turns=4)
    assert compared.worst < NEAR and compared.count == 8
    member, query = compared.member, tiny.query()
    score = ScoreJob(
        query, (Segment("The"),), (Candidate(" sky", False, ()), Candidate("", True, ()))
    )
    first, draft = member.score([score])[0], member.draft([job_for(query)])[0]
    assert tiny.difference(first, member.score([score])[0]) < NEAR
    member.forget(query.id)
    again = member.draft([job_for(query)])[0]
    assert (again.text, again.thought) == (draft.text, draft.thought) and draft.thought


def test_reasoning_leaves_room_for_an_answer():
    member, query = (
        thinker(tokens=500, made_with={"max_position_embeddings": 96}),
        tiny.query("Why?"),
    )
    (draft,) = member.draft([job_for(query)])
    assert draft.text and len(member.states[query.id].context.prompt) < 96 - 8


def test_a_failure_during_reasoning_leaves_no_partial_state():
    member, query, passes = thinker(tokens=8), tiny.query(), []

    def breaks(*_):
        passes.append(1)
        if len(passes) == 3:
            raise RuntimeError("the device is gone")

    hook = member.cache.weights.model.register_forward_pre_hook(breaks)
    (reply,) = member.draft([job_for(query)])
    hook.remove()
    assert isinstance(reply, Failure) and "gone" in reply.message
    assert (
        member.draft([job_for(query)])[0].thought
        == thinker(tokens=8).draft([job_for(query)])[0].thought
        != ""
    )


def test_a_member_that_only_votes_does_not_reason():
    query, voter, writer = tiny.query(), thinker(), thinker()
    job = ScoreJob(query, (), (Candidate(" The sky", False, ("b",)),), thinks=False)
    voted = voter.score([job])[0]
    assert prompt_of(voter, query).endswith("<think>\n\n</think>\n\n")
    assert voted.logprobs != writer.score([ScoreJob(query, (), job.candidates)])[0].logprobs
    voter.forget(query.id)
    assert voter.score([job])[0].logprobs == voted.logprobs
