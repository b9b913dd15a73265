"""The promises of the in-process member, on tiny models of many architectures: alone, twins, crowd, cost, ends."""

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from langchain_specfuse import SpecFuseChatModel
from langchain_specfuse.core.values import (
    Candidate,
    DraftJob,
    Failure,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
    Settings,
    Turn,
)
from langchain_specfuse.engine.ensemble import Ensemble
from langchain_specfuse.members._template import PLAIN_END

from . import tiny

QUESTIONS = ["Why?", "def add(a, b):\n", "天空是蓝色的 😀"]

# --- alone ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", tiny.ALL)
def test_alone_it_writes_what_generate_writes_whatever_the_segments(arch):
    for seed, question in zip((0, 1), QUESTIONS, strict=False):
        member, query = tiny.member(arch, seed), tiny.query(question)
        wanted = tiny.greedy(member, query, 24)
        for size in (1, 2, 3, 7, 10, 32):
            told = tiny.answered([member], query, Settings(segment_tokens=size, max_tokens=24))
            found = tiny.tokens_of(told, member.name)
            assert found == wanted[: len(found)]
            # Only bytes of a character that never became whole may be missing, at the very end of the budget.
            assert member.words.told(found, wanted[len(found) :])[0] == ""
            assert len(wanted) - len(found) < 4
            assert tiny.text_of(told) == "".join(round.segment.text for round in told)


def test_some_of_these_answers_end_by_themselves():
    ends = set()
    for arch in ("llama", "gpt2", "qwen3", "mistral"):
        for seed in (0, 1, 2):
            told = tiny.answered([tiny.member(arch, seed)], tiny.query(), Settings(max_tokens=60))
            ends.add(told[-1].finish)
    assert ends == {"stop", "length"}


def test_a_penalty_of_the_generation_config_is_kept():
    model, tokenizer = tiny.made("llama", 1)
    model.generation_config.repetition_penalty = 1.7
    member = tiny.TransformersMember(model, tokenizer, name="m")
    member.probe()
    query = tiny.query()
    told = tiny.answered([member], query, Settings(max_tokens=24))
    assert tiny.tokens_of(told, "m") == tiny.greedy(member, query, 24)
    plain = tiny.TransformersMember(model, tokenizer, name="m", repetition_penalty=1.0)
    plain.probe()
    assert tiny.tokens_of(tiny.answered([plain], query, Settings(max_tokens=24)), "m") != tiny.tokens_of(told, "m")


# --- twins ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", tiny.ALL)
@pytest.mark.parametrize("count", [2, 3])
def test_twins_write_what_one_writes_and_never_score(arch, count):
    settings = Settings(segment_tokens=4, max_tokens=20)
    one = tiny.answered([tiny.member(arch, 1)], tiny.query(), settings)
    asked = []
    twins = [tiny.member(arch, 1, name=f"twin{k}") for k in range(count)]
    told = tiny.answered(twins, tiny.query(), settings, after=lambda ask, _: asked.extend(ask.jobs.values()))
    assert [round.segment.text for round in told] == [round.segment.text for round in one]
    assert not any(isinstance(job, ScoreJob) for job in asked)
    assert not any(round.left or round.scores for round in told)
    for weight in told[-1].weights.values():
        assert weight == pytest.approx(1 / count)


# --- crowd ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2", "mistral", "qwen3-next"])
def test_in_a_crowd_each_query_gets_the_replies_it_gets_alone(arch):
    """Queries of many lengths, which come and go at different rounds."""
    member, apart = tiny.member(arch, 1), tiny.member(arch, 1)
    queries = [tiny.query("The sky is blue. " * (1 + 3 * k)) for k in range(6)]
    answers = {query.id: () for query in queries}
    for turn in range(6):
        present = [query for k, query in enumerate(queries) if k <= turn <= k + 3]
        jobs = [DraftJob(query, answers[query.id], 2 + k, 40, Sampling()) for k, query in enumerate(present)]
        for job, reply in zip(jobs, member.draft(jobs), strict=True):
            assert tiny.difference(reply, apart.draft([job])[0]) < 1e-4
            foreign = turn % 2 and not reply.ended
            answers[job.query.id] += (
                Segment(
                    " and so on," if foreign else reply.text, tokens={} if foreign else {member.name: reply.tokens}
                ),
            )
        scores = [
            ScoreJob(
                q, answers[q.id], (Candidate(" one", False, ("x",)), Candidate("" if turn else " two", True, ("y",)))
            )
            for q in present
        ]
        for job, reply in zip(scores, member.score(scores), strict=True):
            assert tiny.difference(reply, apart.score([job])[0]) < 1e-4
        for gone in [query for k, query in enumerate(queries) if turn == k + 3]:
            member.forget(gone.id)
    assert len(member.store.rows if hasattr(member.store, "rows") else member.store._kept) == 3


def test_threads_and_coroutines_get_what_each_gets_alone():
    members = [tiny.member("llama", 1), tiny.member("gemma3", 1)]
    ensemble, settings = Ensemble(members), Settings(segment_tokens=4, max_tokens=16)

    def asked(text):
        return tiny.text_of(list(ensemble.rounds(tiny.query(text), settings)))

    async def asked_async(text):
        return tiny.text_of([round async for round in ensemble.arounds(tiny.query(text), settings)])

    async def crowd():
        return await asyncio.gather(*map(asked_async, QUESTIONS))

    alone = [asked(text) for text in QUESTIONS]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(asked, QUESTIONS)) == alone
    assert asyncio.run(crowd()) == alone


def test_a_chat_model_streams_the_answer_of_the_rounds():
    members = [tiny.member("llama", 1), tiny.member("phi3", 1)]
    llm = SpecFuseChatModel(members=members, segment_tokens=4, max_tokens=16)
    told = tiny.answered(members, tiny.query("Why?"), Settings(segment_tokens=4, max_tokens=16))
    assert "".join(chunk.text for chunk in llm.stream("Why?")) == tiny.text_of(told)
    assert [answer.text for answer in llm.batch(["Why?", "Why?"])] == [tiny.text_of(told)] * 2


# --- text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "gpt2", "gemma3", "mistral", "bloom"])
def test_the_segments_are_the_text_of_the_tokens(arch):
    for seed in (0, 1):
        member, query = tiny.member(arch, seed), tiny.query()
        prompt = member._prompt_ids(query.turns)
        told = tiny.answered([member], query, Settings(segment_tokens=3, max_tokens=30))
        tokens = tiny.tokens_of(told, member.name)
        whole = member.words.added(prompt, tokens)
        assert tiny.text_of(told) == whole or "\ufffd" in whole
        assert [round.text.encode() for round in told]


@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_stop_string_is_never_seen_even_across_a_seam(size):
    member = tiny.member("llama", 1)
    free = tiny.text_of(tiny.answered([member], tiny.query(), Settings(max_tokens=40)))
    for at in range(2, min(len(free) - 4, 20), 3):
        stop = free[at : at + 4]
        told = tiny.answered([member], tiny.query(), Settings(segment_tokens=size, max_tokens=40, stop=(stop,)))
        assert tiny.text_of(told) == free[: free.index(stop)]
        assert told[-1].finish == "stop_string"
        assert sum(len(round.segment.tokens[member.name]) for round in told) < 40


# --- cost -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2", "mistral"])
def test_the_prompt_is_read_once_and_a_won_round_costs_its_new_tokens_only(arch):
    member, query = tiny.member(arch, 1), tiny.query("The air scatters blue light. " * 8)
    prompt = len(member._prompt_ids(query.turns))
    answer, read = (), []
    for _ in range(6):
        (draft,) = member.draft([DraftJob(query, answer, 5, 64, Sampling())])
        assert draft.effort.prompt == prompt
        read.append(draft.effort.read)
        drawn = len(member._memo(query).ahead)
        if answer:
            assert draft.effort.read <= drawn + 1
            assert draft.effort.reused >= prompt
        answer += (Segment(draft.text, tokens={member.name: draft.tokens}),)
    assert read[0] < prompt + 20
    assert prompt + sum(len(s.tokens[member.name]) for s in answer) + 2 * len(answer) >= member.store.passed


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2", "mistral"])
def test_a_scored_draft_that_wins_is_not_read_again(arch):
    member, query = tiny.member(arch, 1), tiny.query()
    answer = (Segment("The sky"),)
    member.draft([DraftJob(query, answer, 4, 64, Sampling())])
    winner, loser = " is blue because of the air", " tastes of nothing at all"
    member.score([ScoreJob(query, answer, (Candidate(loser, False, ("x",)), Candidate(winner, False, ("y",))))])
    before = member.store.passed
    (draft,) = member.draft([DraftJob(query, (*answer, Segment(winner)), 4, 64, Sampling())])
    assert member.store.passed - before < len(draft.tokens) + 3  # nothing of the winner


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral"])
def test_late_rounds_read_no_more_than_early_ones(arch):
    members = [tiny.member(arch, 1), tiny.member("phi3", 1), tiny.member(arch, 3)]
    read = []

    class Counted:
        name = members[0].name

        def _counted(self, work, jobs):
            (reply,) = getattr(members[0], work)(jobs)
            read.append(reply.effort.read)
            return [reply]

        def draft(self, jobs):
            return self._counted("draft", jobs)

        def score(self, jobs):
            return self._counted("score", jobs)

        def forget(self, query_id):
            members[0].forget(query_id)

    tiny.relayed([Counted(), *members[1:]], tiny.query("The air scatters blue light. " * 8), 4, turns=10)
    by_round = [draft + score for draft, score in zip(read[::2], read[1::2], strict=True)]
    assert by_round[0] > 100
    assert max(by_round[1:]) < 100


# --- ends -------------------------------------------------------------------------------------------------------


def test_what_it_drafts_it_scores_with_the_same_numbers():
    same = 0
    for arch in tiny.ALL:
        member, query, answer = tiny.member(arch, 1), tiny.query(), (Segment("The sky"),)
        for size in (1, 2, 4):
            (draft,) = member.draft([DraftJob(query, answer, size, 9, Sampling())])
            (scored,) = member.score([ScoreJob(query, answer, (Candidate(draft.text, draft.ended, ("x",)),))])
            if len(scored.logprobs[0]) == len(draft.logprobs):
                assert scored.logprobs[0] == pytest.approx(draft.logprobs, abs=1e-4)
                same += 1
    assert same >= 6  # else the text alone makes other tokens


def test_the_end_is_any_of_the_stop_tokens():
    member, query = tiny.member("llama", 1), tiny.query()
    assert len(member.stops) == 2  # the tokenizer's own, and the template's
    (scored,) = member.score([ScoreJob(query, (), (Candidate("", True, ("x",)),))])
    ids = torch.tensor([member._prompt_ids(query.turns)])
    with torch.no_grad():
        probs = member._weights.model(ids).logits[0, -1].softmax(-1)
    assert math.exp(scored.logprobs[0][0]) == pytest.approx(float(probs[member.stops].sum()), rel=1e-4)


def follows(member, script):
    """Let the model say exactly these tokens, whatever it is asked: (tokens so far) -> next."""
    honest = member.drawing.store.__class__

    class Led(honest):
        def _said(self, keys):
            rows = []
            for key in keys:
                said = len(self.rows[key].ids) - self.base
                row = torch.full((member._weights.model.config.vocab_size,), -9.0)
                row[script[min(said, len(script) - 1)]] = 9.0
                rows.append(row)
            return rows

        def lead(self, wants, exact=False):
            super().lead(wants, exact)
            return self._said([key for key, _ in wants])

        def step(self, keys, tokens):
            super().step(keys, tokens)
            return torch.stack(self._said(keys))

    member.store.__class__ = Led
    return member


def scripted(arch, text, end, **kwargs):
    """A tiny model that answers with this text and then ends with these tokens."""
    member = tiny.member(arch, 1, **kwargs)
    query = tiny.query()
    prompt = member._prompt_ids(query.turns)
    member.store.base = len(prompt)
    return follows(member, member.words.answer_ids("nobody", prompt, [Segment(text)])[len(prompt) :] + end), query


@pytest.mark.parametrize("size", [1, 2, 5, 40])
@pytest.mark.parametrize("text", ["", "42", "The answer is 42", "Yes. 天空 😀", "def add(a, b):\n    return a\n"])
def test_an_answer_that_ends_is_whole(text, size):
    member, query = scripted("llama", text, [1])
    told = tiny.answered([member], query, Settings(segment_tokens=size, max_tokens=90))
    assert (tiny.text_of(told), told[-1].finish) == (text, "stop")


@pytest.mark.parametrize("arch", ["gpt2", "opt"])
@pytest.mark.parametrize("size", [1, 2, 5, 60])
@pytest.mark.parametrize("text", ["42", "The answer is 42.", "One\n\nTwo # three #", "天空 😀"])
def test_the_end_of_a_plain_template_is_said_in_words_and_never_shown(arch, text, size):
    member = tiny.member(arch, 1)
    query = tiny.query()
    prompt = member._prompt_ids(query.turns)
    member.store.base = len(prompt)
    whole = [Segment(text + PLAIN_END + " Question\n\nNext?")]
    follows(member, member.words.answer_ids("nobody", prompt, whole)[len(prompt) :])
    told = tiny.answered([member], query, Settings(segment_tokens=size, max_tokens=200))
    assert (tiny.text_of(told), told[-1].finish) == (text, "stop")


@pytest.mark.parametrize("size", [1, 3, 20])
def test_an_end_in_words_may_begin_inside_a_token(size):
    """Where one token holds the last sign and a line break behind it, the sign is not lost, nor the word before."""
    member, query = tiny.member("opt", 1, made_with={"tokenizer": "bytes-lines"}), tiny.query()
    words = member.words
    (joined,) = words.encode(".\n")
    prompt = member._prompt_ids(query.turns)
    member.store.base = len(prompt)
    follows(member, [*words.encode("The end"), joined, *words.encode("\n##")])
    told = tiny.answered([member], query, Settings(segment_tokens=size, max_tokens=60))
    assert (tiny.text_of(told), told[-1].finish) == ("The end.", "stop")
    (draft,) = told[-1].drafts.values()
    assert len(draft.logprobs) == len(draft.tokens) + 1
    assert words.told(prompt, draft.tokens)[0] == draft.text


@pytest.mark.parametrize("kind", ["bytes", "bytes-prefix", "pieces", "pieces-bare"])
def test_the_words_that_end_a_turn_are_tokenized_as_they_are_said(kind):
    """After an answer, not at the beginning of a text, where some tokenizers put a space."""
    member = tiny.member("llama", made_with={"tokenizer": kind, "chat_template": None})
    said = member.words.told(member.words.encode("The end"), member.end_ids)[0]
    assert said == PLAIN_END
    assert member.words.encode("The end") + member.end_ids == member.words.encode("The end" + PLAIN_END)


# --- what does not fit ------------------------------------------------------------------------------------------


def small_context(arch, extra):
    query = tiny.query()
    size = len(tiny.member(arch)._prompt_ids(query.turns)) + extra
    key = {"gpt2": "n_positions"}.get(arch, "max_position_embeddings")
    return tiny.member(arch, 1, made_with={key: size}), query


@pytest.mark.parametrize("arch", ["gpt2", "opt", "llama"])
def test_a_prompt_beyond_the_context_is_a_failure_and_no_crash(arch):
    member, query = small_context(arch, 0)
    fits = tiny.query("")
    told = member.draft([DraftJob(query, (), 4, 9, Sampling()), DraftJob(fits, (), 4, 9, Sampling())])
    assert isinstance(told[0], Failure) and told[0].kind == "overflow"
    assert str(member.context_limit) in told[0].message
    assert not isinstance(told[1], Failure)


@pytest.mark.parametrize("arch", ["gpt2", "opt", "llama"])
def test_in_the_middle_of_an_answer_drafts_get_shorter_and_then_fail(arch):
    member, query = small_context(arch, 10)
    member.drawing = replace(member.drawing, stops=())  # it would go on for ever
    answer, sizes = (), []
    for _ in range(12):
        (draft,) = member.draft([DraftJob(query, answer, 4, 90, Sampling())])
        if isinstance(draft, Failure):
            break
        sizes.append(len(draft.tokens))
        answer += (Segment(draft.text, tokens={member.name: draft.tokens}),)
    assert isinstance(draft, Failure) and draft.kind == "overflow"
    assert sum(sizes) == 10


@pytest.mark.parametrize("arch", ["gpt2", "opt", "llama"])
def test_a_draft_of_others_that_does_not_fit_fails_alone(arch):
    member, query = small_context(arch, 6)
    fits = tiny.query("")
    long = (Candidate(" The sky is blue because of the air." * 3, False, ("x",)), Candidate(" a", False, ("y",)))
    jobs = [ScoreJob(query, (), long), ScoreJob(fits, (), long[1:])]
    for told in (member.score(jobs), member.score(jobs)):
        assert isinstance(told[0], Failure) and told[0].kind == "overflow"
        assert isinstance(told[1], Scored)
        assert tiny.difference(told[1], tiny.rereading(member).score([jobs[1]])[0]) < 1e-4


def test_out_of_memory_frees_everything_and_tries_each_alone(monkeypatch):
    member, apart = tiny.member("llama", 1), tiny.member("llama", 1)
    jobs = [DraftJob(tiny.query(text), (), 4, 9, Sampling()) for text in QUESTIONS]
    honest, cleared = member.store.lead, []

    def lead(wants, exact=False):
        if len(wants) > 1:
            raise torch.OutOfMemoryError("no room")
        return honest(wants, exact)

    monkeypatch.setattr(member.store, "lead", lead)
    monkeypatch.setattr(member.store, "clear", lambda clear=member.store.clear: (cleared.append(1), clear()))
    for job, reply in zip(jobs, member.draft(jobs), strict=True):
        assert tiny.difference(reply, apart.draft([job])[0]) < 1e-4
    assert cleared == [1]


def test_out_of_memory_even_alone_is_a_failure(monkeypatch):
    member = tiny.member("llama", 1)

    def lead(wants, exact=False):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(member.store, "lead", lead)
    (reply,) = member.draft([DraftJob(tiny.query(), (), 4, 9, Sampling())])
    assert isinstance(reply, Failure) and "out of memory" in reply.message
    assert isinstance(reply.cause, torch.OutOfMemoryError)


def test_turns_that_the_template_refuses_are_a_failure_of_that_query_alone():
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}x"
    member = tiny.member("llama", 1, chat_template=template)
    bad = tiny.query("b", Turn("assistant", "a"))
    told = member.draft([DraftJob(q, (), 4, 9, Sampling()) for q in (tiny.query(), bad)])
    assert not isinstance(told[0], Failure)
    assert isinstance(told[1], Failure) and "begin with the user" in told[1].message


# --- sampling ---------------------------------------------------------------------------------------------------

WARM = Sampling(temperature=0.9, top_p=0.95, top_k=50, seed=3)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral", "qwen3-next"])
def test_a_seed_gives_one_answer_whatever_the_segments(arch):
    member = tiny.member(arch, 1)
    query = tiny.query("Why?")
    texts = {
        tiny.text_of(tiny.answered([member], query, Settings(segment_tokens=size, max_tokens=20, sampling=WARM)))
        for size in (1, 3, 10, 32)
    }
    assert len(texts) == 1
    other = Settings(max_tokens=20, sampling=Sampling(temperature=0.9, seed=4))
    assert tiny.text_of(tiny.answered([member], query, other)) not in texts


def test_members_of_one_model_draw_differently_by_their_seeds():
    one, other = tiny.member("llama", 1, name="one"), tiny.member("llama", 1, name="other", own_seed=5)
    job = DraftJob(tiny.query(), (), 8, 20, WARM)
    assert one.draft([job])[0].text != other.draft([job])[0].text
    greedy = DraftJob(tiny.query(), (), 8, 20, Sampling())
    assert one.draft([greedy])[0].text == other.draft([greedy])[0].text


def test_drawn_text_does_not_depend_on_the_batch():
    member, apart = tiny.member("llama", 1), tiny.member("llama", 1)
    jobs = [DraftJob(tiny.query(text), (), 6, 20, WARM) for text in QUESTIONS]
    for job, reply in zip(jobs, member.draft(jobs), strict=True):
        assert tiny.difference(reply, apart.draft([job])[0]) < 1e-4


def test_numbers_of_a_drawn_draft_are_the_models_own():
    member = tiny.member("llama", 1)
    query, answer = tiny.query(), (Segment("The sky"),)
    (draft,) = member.draft([DraftJob(query, answer, 4, 9, Sampling(temperature=1.5, repetition_penalty=1.4, seed=1))])
    ids = member.words.answer_ids("nobody", member._prompt_ids(query.turns), answer)
    with torch.no_grad():
        logits = member._weights.model(torch.tensor([ids + list(draft.tokens)])).logits[0].log_softmax(-1)
    known = [float(logits[len(ids) - 1 + k, token]) for k, token in enumerate(draft.tokens)]
    assert list(draft.logprobs[: len(known)]) == pytest.approx(known, abs=1e-4)
