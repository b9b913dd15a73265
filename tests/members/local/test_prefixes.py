"""Text read for one query is reused by later ones that begin alike, and replies stay the same."""

import random
from dataclasses import replace

import pytest

from langchain_specfuse.core.values import (
    Candidate,
    Draft,
    DraftJob,
    Failure,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
    Turn,
)
from langchain_specfuse.errors import UsageError
from langchain_specfuse.members.local import strands
from langchain_specfuse.members.local.strands import common_prefix

from .. import tiny
from ..tiny import NEAR
from .test_masking import BOUND
from .test_thinking import OPENS

KINDS = ["llama", "gemma3", "mistral", "gpt2", "qwen3-next", "bloom"]
"""Full attention, windows among it and everywhere, learned positions, states, states read one by
one, ALiBi."""
STORY = "The sky is blue because the air scatters blue light more than red light. "


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch):
    """Keep prefixes even of tiny prompts."""
    monkeypatch.setattr(strands, "SHORTEST", 1)


def drafted(member, query, size=4, answer=(), sampling=Sampling()):  # noqa: B008
    (draft,) = member.draft([DraftJob(query, tuple(answer), size, 64, sampling)])
    assert isinstance(draft, Draft), draft
    return draft


def once(member, query, size=4):
    """Return a draft for a query that ends afterwards."""
    draft = drafted(member, query, size)
    member.forget(query.id)
    return draft


def next_turn(query, answer, then):
    turn = Turn("assistant", "".join(segment.text for segment in answer))
    return tiny.query(then, *query.turns, turn)


# --- equality with fresh readings -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "limit"),
    [
        ("gemma3", True),
        ("qwen3-next", True),
        ("llama", 150_000),
        pytest.param("llama", True, marks=pytest.mark.long),
        *(
            pytest.param(arch, 150_000, marks=pytest.mark.long)
            for arch in ("gemma3", "mistral", "gpt2", "bloom")
        ),
    ],
)
def test_replies_stay_equal_over_a_long_random_life_of_prompts_that_begin_alike(arch, limit):
    """Queries begin like earlier ones, open or ended, in batches or alone, sampled or greedy, and
    end at any time."""
    chance = random.Random(arch)
    member = tiny.member(arch, 1, prefix_cache=limit)
    slow, words = tiny.uncached(member), STORY.split(" ")
    known, open_queries, ended, reused = [words], {}, [], 0
    for _ in range(14):
        for _ in range(chance.randint(0, 2)):
            base = chance.choice(known)
            known.append(
                [
                    *base[: chance.randint(0, len(base))],
                    *chance.choices(words, k=chance.randint(1, 12)),
                ]
            )
            query = tiny.query(" ".join(known[-1]))
            if ended and chance.random() < 0.5:
                query = next_turn(*chance.choice(ended), "And?")
            open_queries[query.id] = (
                query,
                (),
                Sampling(chance.choice([0.0, 0.9]), seed=chance.randint(0, 9)),
            )
        present = chance.sample(list(open_queries), chance.randint(0, min(3, len(open_queries))))
        jobs = [DraftJob(*open_queries[key][:2], 3, 40, open_queries[key][2]) for key in present]
        votes = [
            ScoreJob(job.query, job.answer, candidates(chance))
            for job in jobs
            if chance.random() < 0.6
        ]
        for work, batch in (("draft", jobs), ("score", votes)):
            for job, reply in zip(batch, getattr(member, work)(batch), strict=True):
                slow.forget(job.query.id)
                assert tiny.difference(reply, getattr(slow, work)([job])[0]) < NEAR
                if isinstance(reply, Draft):
                    reused += reply.effort.reused if not job.answer else 0
                    own_segment = Segment(reply.text, tokens={member.name: reply.tokens})
                    query, answer, how = open_queries[job.query.id]
                    new = chance.choice([own_segment, Segment(" and so on"), Segment(" blue")])
                    open_queries[query.id] = (query, (*answer, new), how)
        for key in [key for key in open_queries if chance.random() < 0.3]:
            ended.append(open_queries.pop(key)[:2])
            member.forget(key)
        assert limit is True or member.prefixes["bytes"] <= limit
    assert reused > 0


def candidates(chance):
    texts = chance.sample(
        [" the air", " blue because", " 天", "", " is red, and so"], chance.randint(1, 3)
    )
    return tuple(Candidate(text, not text or chance.random() < 0.3, ("x",)) for text in texts)


@pytest.mark.parametrize(
    "arch",
    ["gemma3", *(pytest.param(arch, marks=pytest.mark.long) for arch in ("llama", "qwen3-next"))],
)
def test_constrained_and_reasoned_answers_do_not_depend_on_earlier_queries(arch):
    compared = tiny.Compared(tiny.member(arch, 1, chat_template=OPENS, thinking_tokens=12))
    for text, constraint in (
        ("Why?", None),
        ("Why?", BOUND["schema"]),
        ("Why not?", BOUND["schema"]),
        ("Why?", None),
    ):
        query = tiny.query(STORY + text, constraint=constraint)
        tiny.relayed([compared, tiny.member("phi3", 1)], query, 5, turns=2)
    assert compared.count > 8 and compared.worst < NEAR
    thoughts = {once(compared.member, tiny.query(STORY + "Why?"), 6).thought for _ in range(2)}
    assert len(thoughts) == 1 and "" not in thoughts


@pytest.mark.parametrize("arch", tiny.THREE)
@pytest.mark.parametrize("long", [1, 8])
def test_a_repeated_question_gets_a_bit_identical_answer(arch, long):
    """Its prompt is not read again in other chunks, so no rounding differs."""
    member = tiny.member(arch, 1)
    first = once(member, tiny.query(STORY * long + "Why?"), 8)
    for text in ("Why is that?", "Tell me more.", ""):
        once(member, tiny.query(STORY * long + text), 8)
    again = once(member, tiny.query(STORY * long + "Why?"), 8)
    assert (first.tokens, first.logprobs) == (again.tokens, again.logprobs)
    assert again.effort.reused == again.effort.prompt


# --- savings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral", "gpt2"])
def test_the_next_turn_reads_and_reports_only_new_text(arch):
    member, query = tiny.member(arch, 1), tiny.query(STORY * 4)
    cold = drafted(member, query)
    answer = (Segment(cold.text, tokens={member.name: cold.tokens}),)
    drafted(member, query, 4, answer)
    member.forget(query.id)
    later = next_turn(query, answer, "And?")
    before, after = (member.prompts.prompt(turn_query.turns) for turn_query in (query, later))
    warm = drafted(member, later)
    assert cold.effort.reused == 0 and warm.effort.prompt == len(after)
    assert warm.effort.reused >= common_prefix(before, after) > 0.7 * len(after)
    assert warm.effort.read <= len(after) - warm.effort.reused + 16


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_open_queries_share_the_beginning_of_their_prompts(arch):
    """The first query reads it; each of the others gets a copy."""
    member, slow = tiny.member(arch, 1), tiny.uncached(tiny.member(arch, 1))
    queries = [tiny.query(STORY * 4 + text) for text in ("Why?", "How?", "Since when?", "Why?")]
    prompt = member.token_count(queries[0].turns)
    jobs = [DraftJob(query, (), 3, 40, Sampling()) for query in queries]
    replies = member.draft(jobs)
    assert member.cache.tokens_read < 1.5 * prompt + 40
    assert [reply.effort.reused > 0.8 * prompt for reply in replies] == [False, True, True, True]
    jobs = [
        replace(
            job, answer=(Segment(reply.text, tokens={member.name: reply.tokens}), Segment(" so"))
        )
        for job, reply in zip(jobs, replies, strict=True)
    ]
    for job, reply in zip(jobs, member.draft(jobs), strict=True):
        assert tiny.difference(reply, slow.draft([job])[0]) < NEAR


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "qwen3-next"])
def test_without_a_prefix_cache_nothing_is_kept_or_shared(arch):
    member = tiny.member(arch, 1, prefix_cache=False)
    queries = [tiny.query(STORY * 3 + text) for text in ("Why?", "How?")]
    replies = member.draft([DraftJob(query, (), 4, 40, Sampling()) for query in queries])
    for query in queries:
        member.forget(query.id)
    assert member.prefixes == {"prefixes": 0, "tokens": 0, "bytes": 0}
    assert [
        reply.effort.reused for reply in (*replies, once(member, tiny.query(STORY * 3 + "Why?")))
    ] == [0, 0, 0]


@pytest.mark.parametrize("arch", ["llama", "qwen3-next"])
def test_the_prefix_cache_keeps_its_limit_and_evicts_the_least_recently_used(arch):
    texts = [f"{k} {STORY}" * 2 for k in ("One", "Big", "car")]
    free = tiny.member(arch, 1)
    once(free, tiny.query(texts[0]))
    limit = int(2.5 * free.prefixes["bytes"])
    member = tiny.member(arch, 1, prefix_cache=limit)
    for text in (*texts[:2], texts[0], texts[2]):
        once(member, tiny.query(text))
        assert 0 < member.prefixes["bytes"] <= limit
    reused = [
        drafted(member, tiny.query(text)).effort.reused > 20
        for text in (texts[2], texts[0], texts[1])
    ]
    assert reused == [True, True, False]


@pytest.mark.parametrize("wrong", [-1, "2GB", 0.5, None])
def test_a_limit_that_is_not_a_number_of_bytes_is_refused(wrong):
    with pytest.raises(UsageError, match="prefix_cache") as error:
        tiny.TransformersMember("any", prefix_cache=wrong)
    assert "->" in "".join(error.value.notes)


@pytest.mark.parametrize("arch", tiny.THREE)
@pytest.mark.parametrize("at", [1, 3])
def test_results_of_an_interrupted_pass_are_never_used(arch, at):
    member, query, calls = tiny.member(arch, 1), tiny.query(STORY * 2), []

    def breaks(module, arguments):
        calls.append(1)
        if len(calls) == at:
            raise RuntimeError("the device is gone")

    # Between two layers: the first has written what it read, the second has not.
    hook = member.cache.weights.model.model.layers[-1].register_forward_pre_hook(breaks)
    (reply,) = member.draft([DraftJob(query, (), 4, 64, Sampling())])
    hook.remove()
    assert isinstance(reply, Failure) and "gone" in reply.message
    member.forget(query.id)
    again = tiny.query(STORY * 2)
    assert tiny.difference(drafted(member, again), drafted(tiny.uncached(member), again)) < NEAR


# --- limits and eviction --------------------------------------------------------------------------


def test_scores_of_a_query_that_is_only_voted_on_come_from_prefixes_too():
    member = tiny.member("llama", 1)
    for text in ("Why?", "How?"):
        job = ScoreJob(
            tiny.query(STORY * 3 + text), (Segment("The"),), (Candidate(" sky", True, ("x",)),)
        )
        (scored,) = member.score([job])
        assert isinstance(scored, Scored)
        assert tiny.difference(scored, tiny.uncached(member).score([job])[0]) < NEAR
        member.forget(job.query.id)
    assert scored.effort.reused > 50
