"""What the method's published reference code gets wrong about tokens, masks and caches, fault by fault.

The faults that the pure core can show are in ``tests/core``.
"""

from __future__ import annotations

import inspect

import pytest
import torch

from langchain_specfuse.core.method import Settings
from langchain_specfuse.core.values import Candidate, DraftJob, Sampling, ScoreJob, Segment
from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.members.llamacpp.cache import SequenceStore
from langchain_specfuse.members.llamacpp.member import LlamaCppMember
from langchain_specfuse.members.text import templates

from . import tiny


@pytest.mark.parametrize("tokenizer", ["bytes", "pieces", "pieces-bare"])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_fault_3_an_incomplete_character_becomes_a_space(tokenizer, size):
    text, query = "天空 😀👩‍👩‍👧 ภาษา é", tiny.query()
    member = tiny.wishful(query, text, tokenizer=tokenizer)
    rounds = tiny.answered([member], query, Settings(segment_tokens=size, max_tokens=160))
    assert tiny.text_of(rounds) == text
    assert not any("\ufffd" in round.text for round in rounds)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral", "qwen3"])
def test_fault_5_each_segment_is_tokenized_alone(arch):
    member = tiny.member(arch, 1)
    words, prompt = member.words, member.words.encode("Answer:\n")
    pieces = ["The sky", " is blue because", " the air", " scatters light.\n"]
    whole = words.answer_ids(member.name, prompt, [Segment("".join(pieces))])
    assert words.answer_ids(member.name, prompt, [Segment(piece) for piece in pieces]) == whole
    own = (*words.continuing("T"), *words.continuing("he"))
    assert own != tuple(words.continuing("The"))
    kept = words.answer_ids(member.name, prompt, [Segment("The", tokens={member.name: own})])
    assert tuple(kept[len(prompt) :]) == own  # what it wrote itself keeps the tokens that it wrote


@pytest.mark.parametrize("kind", ["pieces", "pieces-bare", "unigram", "bytes-prefix"])
def test_fault_6_leading_spaces_are_lost_but_for_one_tokenizer(kind):
    words = tiny.member("llama", 1, made_with={"tokenizer": kind}).words
    context = words.encode("The sky")
    for text in (" is", " is blue", " the air"):
        assert words.text_after(context, words.continuing(text))[0] == text
        assert words.added(words.encode("x"), words.answer_ids("", context, [Segment(text)])[len(context) :]) == text


def test_fault_7_the_tree_mask_ignores_sliding_windows():
    member, query = tiny.member("gemma3", 1), tiny.query("The air scatters blue light. " * 5)
    assert member.token_count(query.turns) > 8 and member.loaded.weights.model.config.sliding_window == 8
    candidates = tuple(Candidate(text, False, ("x",)) for text in (" blue because of the air", " red", " and on"))
    job = ScoreJob(query, (Segment("The sky is"),), candidates)
    (scored,) = member.score([job])
    for candidate, row in zip(candidates, scored.logprobs, strict=True):
        prompt = member.loaded.prompt_ids(query.turns)
        ids = member.words.answer_ids("", prompt, [*job.answer, Segment(candidate.text)])
        with torch.no_grad():
            logprobs = member.loaded.weights.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        wanted = [float(logprobs[k - 1, ids[k]]) for k in range(len(ids) - len(row), len(ids))]
        assert list(row) == pytest.approx(wanted, abs=1e-4)


def test_fault_10_the_prompt_is_read_twice_by_every_member_in_every_round():
    members = [tiny.member("llama", 4), tiny.member("gemma3", 1)]
    query = tiny.query("The air scatters blue light. " * 20)
    rounds = tiny.answered(members, query, Settings(segment_tokens=3, max_tokens=24))
    assert len(rounds) > 3
    for member in members:
        read = sum(
            efforts[member.name].read for r in rounds for efforts in r.efforts.values() if member.name in efforts
        )
        assert 100 < member.token_count(query.turns) <= read < 2 * member.token_count(query.turns)


def test_fault_10_stop_tokens_depend_on_the_model_s_name():
    source = inspect.getsource(templates.stop_ids) + inspect.getsource(templates.end_of_turn)
    assert "name_or_path" not in source
    stops = [tiny.member("llama", 1, name=name).stops for name in ("llama", "qwen", "mistral", "x")]
    assert stops == [stops[0]] * 4
    # The same weights with another template end with another token.
    plain = tiny.member("llama", 1, chat_template="{{ messages[-1].content }}")
    assert plain.stops != stops[0]


def test_fault_10_sampling_is_fixed_and_has_no_seed():
    ways = (Sampling(), Sampling(1.0, seed=1), Sampling(1.0, seed=1), Sampling(1.0, seed=2), Sampling(1.0, top_k=1))
    member, query = tiny.member("llama", 1), tiny.query()
    texts = [member.draft([DraftJob(query, (), 8, 20, how)])[0].text for how in ways]
    assert texts[0] == texts[4] and texts[1] == texts[2]
    assert len(set(texts)) == 3


@pytest.mark.real
def test_fault_10_one_query_at_a_time(tmp_path, monkeypatch):
    member, passes = LlamaCppMember(file_of(SMOLLM2)), []
    member.probe()
    one_pass = SequenceStore._pass
    monkeypatch.setattr(SequenceStore, "_pass", lambda *given: passes.append(1) or one_pass(*given))
    member.draft([DraftJob(tiny.query(str(k)), (), 6, 6, Sampling()) for k in range(8)])
    assert 0 < len(passes) < 8 * 2
