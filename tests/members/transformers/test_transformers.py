"""The promises of the in-process member, on tiny models of several architectures."""

import pytest
import torch

from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import (
    Candidate,
    DraftJob,
    Failure,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
    Turn,
)
from langchain_specfuse.members.text.templates import PLAIN_END
from tests.methods import in_method

from .. import tiny
from ..tiny import NEAR

QUESTIONS = ["Why?", "def add(a, b):\n", "天空是蓝色的 😀"]

# --- alone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", tiny.three_first(tiny.ALL))
def test_alone_it_writes_what_generate_writes_whatever_the_segments(arch):
    for seed, question in zip((0, 1), QUESTIONS, strict=False):
        member, query = tiny.member(arch, seed), tiny.query(question)
        expected = tiny.greedy(member, query, 24)
        for size in (1, 3, 10):
            rounds = tiny.answered(
                [member], query, Settings(method=Method(segment_tokens=size), max_tokens=24)
            )
            tokens = tiny.tokens_of(rounds, member.name)
            assert tokens == expected[: len(tokens)]
            # Only bytes of a character that never became complete may be missing, at the end of the
            # budget.
            assert (
                member.words.text_after(tokens, expected[len(tokens) :])[0] == ""
                and len(expected) - len(tokens) < 4
            )


def test_a_penalty_of_the_generation_config_is_kept():
    model, tokenizer = tiny.build("llama", 1)
    model.generation_config.repetition_penalty = 1.7
    member = tiny.TransformersMember(model, tokenizer, name="m")
    query = tiny.query()
    rounds = tiny.answered([member], query, Settings(max_tokens=24))
    assert tiny.tokens_of(rounds, "m") == tiny.greedy(member, query, 24)
    plain = Settings(max_tokens=24, repetition_penalty=1.0)
    others = tiny.answered([member], query, plain)
    assert tiny.tokens_of(others, "m") != tiny.tokens_of(rounds, "m")


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 40])
@pytest.mark.parametrize(
    "text", ["", "42", "The answer is 42", "Yes. 天空 😀", "def add(a, b):\n    return a\n"]
)
def test_an_answer_that_ends_is_complete(text, size):
    query = tiny.query()
    rounds = tiny.answered(
        [tiny.wishful(query, text)],
        query,
        Settings(method=Method(segment_tokens=size), max_tokens=90),
    )
    assert (tiny.text_of(rounds), rounds[-1].finish) == (text, "stop")


@pytest.mark.parametrize("size", [1, 2, 5, 60])
@pytest.mark.parametrize("text", ["42", "The answer is 42.", "One\n\nTwo # three #", "天空 😀"])
def test_the_end_of_a_plain_template_is_written_in_words_and_never_shown(text, size):
    query = tiny.query()
    member = tiny.wishful(query, text + PLAIN_END + " Question\n\nNext?", template=None)
    rounds = tiny.answered(
        [member], query, Settings(method=Method(segment_tokens=size), max_tokens=200)
    )
    assert (tiny.text_of(rounds), rounds[-1].finish) == (text, "stop")


@pytest.mark.parametrize("size", [1, 3, 20])
def test_an_end_written_in_words_may_begin_inside_a_token(size):
    """One token contains the last character and the line break after it; neither it nor the word
    before is lost."""
    query, made_with = tiny.query(), {"tokenizer": "bytes-lines", "template": None}
    words = tiny.wishful(query, **made_with).words
    (joined,) = words.encode(".\n")
    tokens = [*words.encode("The end"), joined, *words.encode("\n##")]
    member = tiny.wishful(query, tokens=tokens, **made_with)
    rounds = tiny.answered(
        [member], query, Settings(method=Method(segment_tokens=size), max_tokens=60)
    )
    assert (tiny.text_of(rounds), rounds[-1].finish) == ("The end.", "stop")
    (draft,) = rounds[-1].drafts.values()
    assert len(draft.logprobs) == len(draft.tokens) + 1


@pytest.mark.parametrize("kind", ["bytes", "bytes-prefix", "pieces", "pieces-bare"])
def test_the_words_that_end_a_turn_are_scored_as_they_follow_an_answer(kind):
    """At the beginning of a text, some tokenizers would add a space."""
    member = tiny.member("llama", made_with={"tokenizer": kind, "chat_template": None})
    words, end_ids = member.words, member.prompts.end_ids
    assert words.text_after(words.encode("The end"), end_ids)[0] == PLAIN_END
    assert words.encode("The end") + end_ids == words.encode("The end" + PLAIN_END)


# --- what does not fit ----------------------------------------------------------------------------


def small_context(arch, extra):
    query = tiny.query()
    size = tiny.member(arch).token_count(query.turns) + extra
    key = {"gpt2": "n_positions"}.get(arch, "max_position_embeddings")
    return tiny.member(arch, 1, made_with={key: size}), query


@pytest.mark.parametrize("arch", ["gpt2", "opt", "mistral"])
def test_near_the_end_of_the_context_drafts_get_shorter_and_then_fail(arch):
    member, query = small_context(arch, 10)
    answer, sizes = (), []
    for _ in range(12):
        (draft,) = member.draft([DraftJob(query, answer, 4, 90, Sampling())])
        if isinstance(draft, Failure):
            break
        sizes.append(len(draft.tokens))
        answer += (Segment(draft.text, tokens={member.name: draft.tokens}),)
    assert isinstance(draft, Failure) and draft.kind == "overflow"
    assert str(member.probe().max_context) in draft.message and sum(sizes) == 10


def test_without_max_tokens_a_lead_writes_to_the_end_of_its_context(caplog):
    member, _ = small_context("mistral", 600)
    answer = SpecFuseChatModel(members=[member]).invoke("Why?", regex="[a-z ]{9000}")
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.usage_metadata["output_tokens"] > 550
    assert answer.usage_metadata["total_tokens"] == member.probe().max_context
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "no member could continue it" in warning and "longer context" in warning


@pytest.mark.parametrize("arch", ["gpt2", "opt", "llama"])
def test_a_candidate_that_does_not_fit_is_a_failure_of_its_query_alone(arch):
    member, query = small_context(arch, 6)
    long = (
        Candidate(" The sky is blue because of the air." * 3, False, ("x",)),
        Candidate(" a", False, ("y",)),
    )
    jobs = [ScoreJob(query, (), long), ScoreJob(tiny.query(""), (), long[1:])]
    for replies in (member.score(jobs), member.score(jobs)):
        assert isinstance(replies[0], Failure) and replies[0].kind == "overflow"
        assert isinstance(replies[1], Scored)
        assert tiny.difference(replies[1], tiny.uncached(member).score([jobs[1]])[0]) < NEAR


def test_turns_that_the_template_refuses_are_a_failure_of_that_query_alone():
    template = (
        "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% "
        "endif %}x"
    )
    member = tiny.member("llama", 1, chat_template=template)
    bad = tiny.query("b", Turn("assistant", "a"))
    replies = member.draft([DraftJob(query, (), 4, 9, Sampling()) for query in (tiny.query(), bad)])
    assert not isinstance(replies[0], Failure)
    assert isinstance(replies[1], Failure) and "begin with the user" in replies[1].message


ROLES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def test_a_model_without_an_end_of_turn_does_not_prevent_an_answer_from_ending():
    model, tokenizer = tiny.build("llama", 1, chat_template=ROLES)
    tokenizer.eos_token = model.generation_config.eos_token_id = None
    base = tiny.TransformersMember(model, tokenizer, name="base")
    base.probe()
    assert base.stops == [] and base.template.end_text == ""
    lead = ScriptedMember("The sky is blue.", name="lead", confidence=10.0)
    llm = SpecFuseChatModel(members=[lead, base], lead="lead", max_tokens=20)
    answer = llm.invoke("Why?")
    assert answer.text == "The sky is blue."
    assert answer.response_metadata["finish_reason"] == "stop"


# --- sampling -------------------------------------------------------------------------------------

WARM = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": 3}


@pytest.mark.parametrize("arch", tiny.THREE)
def test_a_seed_gives_one_answer_whatever_the_segments(arch):
    member, query = tiny.member(arch, 1), tiny.query("Why?")
    texts = {
        tiny.text_of(
            tiny.answered(
                [member], query, Settings(**in_method(segment_tokens=size, max_tokens=20, **WARM))
            )
        )
        for size in (1, 3, 10, 32)
    }
    assert len(texts) == 1
    other = Settings(max_tokens=20, temperature=0.9, seed=4)
    assert tiny.text_of(tiny.answered([member], query, other)) not in texts


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-38, 5e-324])
def test_a_temperature_near_zero_is_greedy(temperature):
    member, query = tiny.member("llama", 1), tiny.query("Why?")
    for filters in ({}, {"top_p": 0.9}, {"top_k": 3, "min_p": 0.1}):
        cold = Settings(max_tokens=12, temperature=temperature, **filters)
        tokens = tiny.tokens_of(tiny.answered([member], query, cold), member.name)
        assert tokens
        assert tokens == tiny.greedy(member, query, 12)[: len(tokens)]


def test_log_probabilities_of_a_sampled_draft_are_the_models_own():
    member, query, answer = tiny.member("llama", 1), tiny.query(), (Segment("The sky"),)
    (draft,) = member.draft(
        [DraftJob(query, answer, 4, 9, Sampling(temperature=1.5, repetition_penalty=1.4, seed=1))]
    )
    ids = member.words.answer_ids("nobody", member.prompts.prompt(query.turns), answer)
    with torch.no_grad():
        logits = (
            member.cache.weights.model(torch.tensor([ids + list(draft.tokens)], device=tiny.DEVICE))
            .logits[0]
            .log_softmax(-1)
        )
    known = [float(logits[len(ids) - 1 + k, token]) for k, token in enumerate(draft.tokens)]
    assert list(draft.logprobs[: len(known)]) == pytest.approx(known, abs=NEAR)
