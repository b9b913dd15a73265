"""The promises of the design, one short test each, on tiny random models of three architectures.

Where a promise is tested in detail, the docstring says so.
"""

from __future__ import annotations

import asyncio

import pytest
import torch

from langchain_specfuse import SpecFuseCallbackHandler, SpecFuseChatModel, TransformersMember
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import Candidate, DraftJob, Sampling, ScoreJob, Segment
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members.text.words import Words
from tests.members import tiny
from tests.methods import in_method

QUESTION = "Why is the sky blue?"
MODELS = {"llama": 4, "gemma3": 1, "qwen3": 5}
"""Architecture -> seed of a model with long answers; their tokenizers differ."""


def member(arch, name=None):
    """Return a new member; members of one architecture share its weights."""
    model, tokenizer = tiny.cached(arch, MODELS[arch])
    return TransformersMember(model, tokenizer, name=name or arch)


def chat_model(members, **options):
    return SpecFuseChatModel(
        members=members, **in_method(**{"max_tokens": 24, "segment_tokens": 4, **options})
    )


def summary(message):
    return message.response_metadata["specfuse"]


@pytest.mark.parametrize("arch", MODELS)
def test_1_one_member_alone_writes_its_own_greedy_generation(arch):
    """In detail: ``tests/members/transformers/test_transformers.py``."""
    model, tokenizer = tiny.cached(arch, MODELS[arch])
    messages = [{"role": "user", "content": QUESTION}]
    ids = torch.tensor(
        [tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)]
    )
    generated = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
    )
    expected = tokenizer.decode(generated[0, ids.shape[1] :], skip_special_tokens=True)
    for size in (1, 5, 24):
        answer = chat_model([member(arch)], segment_tokens=size).invoke(QUESTION).text
        # the last character may be incomplete
        assert answer.rstrip("\ufffd") == expected.rstrip("\ufffd") != ""


def test_2_twins_answer_like_one_without_verification_and_stay_equal():
    """In detail: ``tests/core/test_rounds.py``."""
    single = chat_model([member("llama")]).invoke(QUESTION)
    twins = chat_model([member("llama", name) for name in "abc"]).invoke(QUESTION)
    assert twins.text == single.text
    assert summary(twins)["weights"] == pytest.approx(dict.fromkeys("abc", 1 / 3))
    assert summary(twins)["exits"] == []
    assert twins.usage_metadata["output_token_details"]["verified"] == 0


def test_3_replies_with_caches_are_those_computed_from_scratch():
    """In detail: ``tests/members/contract.py``, ``tests/members/local/test_caches.py``."""
    used, query, answer = member("llama"), tiny.query(QUESTION), ()
    used.probe()
    for foreign in (" The sky", " is blue.", "\n"):
        (draft,) = used.draft([DraftJob(query, answer, 4, 64, Sampling())])
        answer = (*answer, Segment(draft.text, tokens={"llama": draft.tokens}), Segment(foreign))
        job = ScoreJob(
            query, answer, (Candidate(" because", False, ()), Candidate(" of it", True, ()))
        )
        fresh = member("llama")
        fresh.probe()
        (cached,), (computed,) = used.score([job]), fresh.score([job])
        assert cached.effort.reused > 0 == computed.effort.reused
        for row, other in zip(cached.logprobs, computed.logprobs, strict=True):
            assert row == pytest.approx(other, abs=1e-4)


def test_4_an_answer_does_not_depend_on_the_other_questions_of_a_batch():
    """In detail: ``tests/chat/test_batching.py``, ``tests/engine/test_drive.py``."""
    llm = chat_model([member(arch) for arch in MODELS])
    questions = [f"{QUESTION} {'And why? ' * k}" for k in range(3)]
    alone = [llm.invoke(question).text for question in questions]
    assert len(set(alone)) > 1
    assert [message.text for message in llm.batch(questions)] == alone
    assert [message.text for message in asyncio.run(llm.abatch(questions))] == alone


def test_5_text_is_conserved_and_stop_strings_only_cut():
    """In detail: ``tests/core/test_properties.py``, ``tests/members/text/test_text.py``."""
    llm = chat_model([member(arch) for arch in MODELS])
    whole = llm.invoke(QUESTION).text
    assert "".join(chunk.text for chunk in llm.stream(QUESTION)) == whole
    assert whole.encode().decode() == whole
    for at in range(1, len(whole) - 2, 20):
        stop = whole[at : at + 2]
        cut = llm.invoke(QUESTION, stop=[stop]).text
        assert cut == whole[: whole.index(stop)]


def test_6_weights_sum_to_1_and_belong_to_members_whatever_their_names():
    """In detail: ``tests/core/test_properties.py``."""

    def followed(names):
        changes = []
        handler = SpecFuseCallbackHandler(
            on_weights=lambda event: changes.append(dict(event.after))
        )
        llm = chat_model([member(arch, name) for arch, name in zip(MODELS, names, strict=True)])
        return llm.invoke(QUESTION, {"callbacks": [handler]}).text, changes

    (text, changes), (renamed_text, renamed_changes) = followed("abc"), followed("zyx")
    assert changes
    assert all(
        sum(weights.values()) == pytest.approx(1) and min(weights.values()) > 0
        for weights in changes
    )
    assert renamed_text == text
    assert [[*weights.values()] for weights in renamed_changes] == [
        [*weights.values()] for weights in changes
    ]


def test_7_a_writer_keeps_its_tokens_and_others_text_is_tokenized_in_its_context():
    """In detail: ``tests/members/text/test_text.py``."""
    rounds = list(
        Ensemble([member(arch) for arch in MODELS]).rounds(
            tiny.query(QUESTION), Settings(max_tokens=24)
        )
    )
    segments, text = (
        [round.segment for round in rounds],
        "".join(round.segment.text for round in rounds),
    )
    for arch in MODELS:
        words = Words(tiny.cached(arch, MODELS[arch])[1])
        prompt = words.encode("Answer:\n")
        ids = words.answer_ids(arch, prompt, segments)
        assert words.added(prompt, ids[len(prompt) :]) == text
        own_tokens = [segment.tokens[arch] for segment in segments if arch in segment.tokens]
        assert all(
            list(tokens) in [ids[at : at + len(tokens)] for at in range(len(ids))]
            for tokens in own_tokens
        )


def test_8_the_prompt_is_read_once_and_a_round_reads_no_more_than_its_drafts():
    """In detail: ``tests/core/test_cost.py``; times: ``benchmarks/rounds.py``."""
    settings = Settings(max_tokens=60, method=Method(exit="never", segment_tokens=4))
    rounds = list(
        Ensemble([member(arch) for arch in MODELS]).rounds(tiny.query(QUESTION), settings)
    )
    assert len(rounds) > 10
    for round in rounds:
        for arch, draft in round.drafts.items():
            context = draft.effort.prompt if round.number == 1 else 0
            # A few more: the rest of a cut draft, and the seam to another member's segment.
            assert round.efforts["draft"][arch].read <= context + len(draft.tokens) + 4
            assert round.number == 1 or round.efforts["draft"][arch].reused >= draft.effort.prompt


@pytest.mark.parametrize("lead", MODELS)
def test_9_with_an_infinite_margin_answer_and_cost_are_the_leads_own(lead):
    """On every engine: ``tests/members/contract.py``. In detail: ``tests/core/test_lead.py``."""
    led = chat_model(
        [member(arch) for arch in MODELS], lead=lead, method=Method(margin=float("inf"))
    ).invoke(QUESTION)
    alone = chat_model([member(lead)]).invoke(QUESTION)
    assert led.text == alone.text != ""
    assert led.usage_metadata["output_tokens"] == alone.usage_metadata["output_tokens"]
    assert (
        led.usage_metadata["output_token_details"] == alone.usage_metadata["output_token_details"]
    )
