"""What was read for one query need not be read for the next that begins alike: cached = fresh, whatever came before."""

import random
from dataclasses import replace

import pytest
import torch

from langchain_specfuse.core.values import (
    Candidate,
    Draft,
    DraftJob,
    Failure,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
    Settings,
    Turn,
)
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.errors import UsageError
from langchain_specfuse.members import _prefixes
from langchain_specfuse.members._prefixes import Prefix, Prefixes, closest, common_prefix, longest_whole
from langchain_specfuse.members._slab import Slab
from langchain_specfuse.members._snapshots import Snapshots
from langchain_specfuse.members._stores import Read, Rereading

from . import tiny
from .test_masking import BOUND
from .test_thinking import KNOWS, OPENS
from .test_transformers_cache import NEAR, Doubled, check, companions

KINDS = ["llama", "gemma3", "mistral", "gpt2", "qwen3-next", "mamba", "lfm2", "bloom"]
"""Full attention, windows among it and everywhere, learned positions, states, states read one by one, ALiBi."""
STORY = "The sky is blue because the air scatters blue light more than red light. "


@pytest.fixture(autouse=True)
def every_token_counts(monkeypatch):
    """Tiny prompts are worth keeping here."""
    monkeypatch.setattr(_prefixes, "LEAST", 1)


def drafted(member, query, size=4, answer=(), sampling=Sampling()):  # noqa: B008
    (draft,) = member.draft([DraftJob(query, tuple(answer), size, 64, sampling)])
    assert isinstance(draft, Draft), draft
    return draft


def turned(query, answer, then):
    """The next turn of a conversation."""
    said = Turn("assistant", "".join(segment.text for segment in answer))
    return tiny.query(then, *query.turns, said)


# --- cached = fresh ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", tiny.ALL)
def test_every_turn_of_a_conversation_equals_a_fresh_reading(arch):
    doubled = Doubled(tiny.member(arch, 1))
    others = companions(arch)
    query = tiny.query(STORY * 2 + "Why?")
    for then in ("And at night?", "天空?", ""):
        answer = tiny.relayed([doubled, *others], query, 3, turns=3)
        query = turned(query, answer, then)
    assert doubled.compared == 18
    assert doubled.worst < NEAR


@pytest.mark.parametrize("arch", ["gemma3", "mistral"])
def test_a_prefix_may_be_longer_than_the_window_and_be_cut_anywhere_in_it(arch):
    member, words = tiny.member(arch, 1), (STORY * 3).split(" ")
    slow = tiny.rereading(member)
    window = max(window for window in member.store.windows if window)
    member.draft([DraftJob(query := tiny.query(" ".join(words)), (), 4, 64, Sampling())])
    member.forget(query.id)
    for count in range(len(words) - 1, 0, -3):
        part = tiny.query(" ".join(words[:count]) + " so?")
        draft = drafted(member, part)
        assert draft.effort.reused > 0
        assert tiny.difference(draft, drafted(slow, part)) < NEAR
        member.forget(part.id)
    assert len(member._prompt_ids(query.turns)) > 8 * window


@pytest.mark.parametrize("arch", KINDS)
@pytest.mark.parametrize("limit", [None, 150_000])
def test_a_long_random_life_of_alike_prompts_drafts_and_cancelled_queries(arch, limit, monkeypatch):
    """Queries begin as others did, over or under way, in batches and alone, warm and greedy, and end at any moment."""
    monkeypatch.setattr("langchain_specfuse.members._snapshots.STEP", 0)  # worth it even if read one by one
    chance = random.Random(arch)
    member = tiny.member(arch, 1, **({} if limit is None else {"prefix_cache": limit}))
    slow = tiny.rereading(member)
    words = STORY.split(" ")
    known, open_queries, ended, reused = [words], {}, [], 0
    for _ in range(20):
        for _ in range(chance.randint(0, 2)):
            base = chance.choice(known)
            text = [*base[: chance.randint(0, len(base))], *chance.choices(words, k=chance.randint(1, 12))]
            known.append(text)
            query = tiny.query(" ".join(text))
            if ended and chance.random() < 0.5:
                query = turned(*chance.choice(ended), "And?")
            open_queries[query.id] = (query, (), Sampling(chance.choice([0.0, 0.9]), seed=chance.randint(0, 9)))
        present = chance.sample(list(open_queries), chance.randint(0, min(3, len(open_queries))))
        jobs = [DraftJob(*open_queries[key][:2], 3, 40, open_queries[key][2]) for key in present]
        votes = [ScoreJob(job.query, job.answer, candidates(chance)) for job in jobs if chance.random() < 0.6]
        for work, batch in (("draft", jobs), ("score", votes)):
            for job, reply in zip(batch, getattr(member, work)(batch) if batch else [], strict=True):
                slow.forget(job.query.id)
                assert tiny.difference(reply, getattr(slow, work)([job])[0]) < NEAR
                reused += reply.effort.reused if isinstance(reply, Draft) and not job.answer else 0
                if isinstance(reply, Draft):
                    goes_on = Segment(reply.text, tokens={member.name: reply.tokens})
                    new = chance.choice([goes_on, Segment(" and so on"), Segment(" blue")])
                    query, answer, how = open_queries[job.query.id]
                    open_queries[query.id] = (query, (*answer, new), how)
        for key in [key for key in open_queries if chance.random() < 0.3]:
            ended.append(open_queries.pop(key)[:2])
            member.forget(key)
        assert member.prefixes["bytes"] <= member.store.prefixes.limit
    assert reused > 0


def candidates(chance):
    texts = [" the air", " blue because", " 天", "", " is red, and so"]
    return tuple(
        Candidate(text, not text or chance.random() < 0.3, ("x",))
        for text in chance.sample(texts, chance.randint(1, 3))
    )


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3-next"])
@pytest.mark.parametrize("kind", ["schema", "choice", "regex"])
def test_constrained_answers_are_the_same_after_others(arch, kind):
    doubled = Doubled(tiny.member(arch, 1))
    for text in ("Why?", "Why?", "Why not?"):
        tiny.relayed([doubled, tiny.member("phi3", 1)], tiny.query(STORY + text, constraint=BOUND[kind]), 5, turns=3)
    assert doubled.compared > 6 and doubled.worst < NEAR


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba"])
@pytest.mark.parametrize("own", [KNOWS, OPENS])
def test_thoughts_are_the_same_after_others(arch, own):
    member = tiny.member(arch, 1, chat_template=own, thinking_tokens=12)
    doubled = Doubled(member)
    query = tiny.query(STORY + "Why?")
    for _ in range(3):
        answer = tiny.relayed([doubled, tiny.member("phi3", 1)], query, 4, turns=2)
        query = turned(query, answer, "And then?")
    first, again = (tiny.query(STORY + "Why?") for _ in range(2))
    told = [drafted(member, one, 6) for one in (first, again)]
    assert told[0].thought == told[1].thought != ""
    assert doubled.worst < NEAR


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3-next"])
def test_drawn_text_is_the_same_after_others(arch):
    how = Sampling(0.9, top_p=0.95, seed=3)
    member = tiny.member(arch, 1)
    settings = Settings(segment_tokens=3, max_tokens=20, sampling=how)
    texts = [tiny.text_of(tiny.answered([member], tiny.query(STORY), settings)) for _ in range(3)]
    cold = tiny.text_of(tiny.answered([tiny.member(arch, 1, prefix_cache=False)], tiny.query(STORY), settings))
    assert texts == [cold] * 3


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3-next", "mamba"])
@pytest.mark.parametrize("long", [1, 8])
def test_a_question_asked_again_is_answered_to_the_bit(arch, long):
    """Its prompt is not read another time, in other pieces: so no rounding differs, and no near-tie falls otherwise."""
    member = tiny.member(arch, 1)
    others = [tiny.query(STORY * long + text) for text in ("Why is that?", "Tell me more.", "")]
    first, again = tiny.query(STORY * long + "Why?"), tiny.query(STORY * long + "Why?")
    one = drafted(member, first, 8)
    member.forget(first.id)
    for other in others:
        drafted(member, other, 8)
        member.forget(other.id)
    two = drafted(member, again, 8)
    assert (one.tokens, one.logprobs) == (two.tokens, two.logprobs)
    assert two.effort.reused == two.effort.prompt


# --- what it saves ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", tiny.SLAB)
def test_the_next_turn_reads_what_is_new_and_says_so(arch):
    member, query = tiny.member(arch, 1), tiny.query(STORY * 4)
    cold = drafted(member, query)
    assert cold.effort.reused == 0
    answer = (Segment(cold.text, tokens={member.name: cold.tokens}),)
    drafted(member, query, 4, answer)
    member.forget(query.id)
    later = turned(query, answer, "And?")
    before, after = member._prompt_ids(query.turns), member._prompt_ids(later.turns)
    warm = drafted(member, later)
    assert warm.effort.prompt == len(after)
    assert warm.effort.reused >= common_prefix(before, after) > 0.7 * len(after)
    assert warm.effort.read <= len(after) - warm.effort.reused + len(member._memo(later).ahead)


@pytest.mark.parametrize("arch", tiny.RECURRENT)
def test_a_state_is_reused_where_its_prompt_ended_and_nowhere_else(arch, monkeypatch):
    monkeypatch.setattr("langchain_specfuse.members._snapshots.STEP", 0)  # worth it even if read one by one
    member, query = tiny.member(arch, 1), tiny.query(STORY * 4)
    cold = drafted(member, query)
    member.forget(query.id)
    prompt = len(member._prompt_ids(query.turns))
    answer = (Segment(cold.text + " and so on"),)
    warm = drafted(member, turned(query, answer, "And?"))
    assert cold.effort.reused == 0
    assert prompt <= warm.effort.reused <= prompt + len(cold.tokens)
    other = tiny.query((STORY * 4).replace("red", "green", 1))
    assert drafted(member, other).effort.reused == 0


@pytest.mark.parametrize("arch", ["qwen3-next", "lfm2"])
def test_the_third_prompt_with_the_same_instructions_goes_on_from_where_the_first_two_parted(arch):
    member = tiny.member(arch, 1)
    found = [drafted(member, tiny.query(STORY * 3 + text)).effort.reused for text in ("Why?", "How?", "When?", "So?")]
    shared = len(member._prompt_ids((Turn("user", STORY * 3),))) - 12
    assert found[:2] == [0, 0]
    assert min(found[2:]) > shared > 50


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral"])
def test_queries_under_way_share_what_they_begin_with(arch):
    """It is read once, for whoever comes first; then each has its own copy."""
    member, slow = tiny.member(arch, 1), tiny.rereading(tiny.member(arch, 1))
    queries = [tiny.query(STORY * 4 + text) for text in ("Why?", "How?", "Since when?", "Why?")]
    one = len(member._prompt_ids(queries[0].turns))
    jobs = [DraftJob(query, (), 3, 40, Sampling()) for query in queries]
    replies = member.draft(jobs)
    drawn = sum(len(member._memo(query).ahead) + 1 for query in queries)
    assert member.store.passed < 1.5 * one + drawn
    assert [reply.effort.reused > 0.8 * one for reply in replies] == [False, True, True, True]
    late = DraftJob(tiny.query(STORY * 4 + "Where?"), (), 3, 40, Sampling())
    jobs, replies = [*jobs, late], [*replies, *member.draft([late])]
    assert replies[-1].effort.reused > 0.8 * one
    jobs = [
        replace(job, answer=(Segment(reply.text, tokens={member.name: reply.tokens}), Segment(" so")))
        for job, reply in zip(jobs, replies, strict=True)
    ]
    for job, reply in zip(jobs, member.draft(jobs), strict=True):
        assert tiny.difference(reply, slow.draft([job])[0]) < NEAR


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3-next"])
def test_a_cancelled_query_leaves_what_it_had_read(arch):
    member, settings = tiny.member(arch, 1), Settings(segment_tokens=4, max_tokens=12)
    ensemble = Ensemble([member])
    for text in ("Why?", "How?", "When?"):
        cancelled = ensemble.rounds(query := tiny.query(STORY * 3 + text), settings)
        next(cancelled)
        cancelled.close()
    told = list(ensemble.rounds(replace(query, id="again"), settings))
    effort = told[0].efforts["draft"][member.name]
    assert effort.reused == effort.prompt
    assert tiny.text_of(told) == tiny.text_of(tiny.answered([tiny.rereading(member)], query, settings))


def test_what_few_tokens_two_questions_share_is_read_again_and_no_bit_of_an_answer_hangs_on_it(monkeypatch):
    monkeypatch.setattr(_prefixes, "LEAST", 64)
    member, alone = tiny.member("llama", 1), tiny.member("llama", 1)
    for text in ("Why is the sky blue?", "Why is the sky red?", "Why is the sky"):
        query = tiny.query(text)
        draft = drafted(member, query)
        assert draft.effort.reused == 0
        assert draft == replace(drafted(alone, query), effort=draft.effort)
        member.forget(query.id)
        alone.unload()


def test_members_with_the_same_weights_read_a_prompt_once(tmp_path):
    model, tokenizer = tiny.cached("llama", 1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    members = [tiny.TransformersMember(tmp_path, name=f"m{k}", seed=k, dtype="float32") for k in range(3)]
    query, how = tiny.query(STORY * 4), Sampling(0.9, seed=1)
    for member in members:
        member.probe()
    drafts = [drafted(member, query, 6, sampling=how) for member in members]
    prompt = drafts[0].effort.prompt
    assert [draft.effort.reused for draft in drafts] == [0, prompt, prompt]
    assert len({draft.text for draft in drafts}) == 3
    for member, draft in zip(members, drafts, strict=True):
        assert tiny.difference(draft, drafted(tiny.rereading(member), query, 6, sampling=how)) < NEAR
        member.forget(query.id)
    assert [member.prefixes["prefixes"] for member in members] == [1, 1, 1]  # they keep it together
    for member in members[1:]:
        drafted(member, again := tiny.query(STORY * 4 + "So?"), 2)
        member.forget(again.id)
    assert members[0].prefixes == members[2].prefixes
    assert members[0].prefixes["tokens"] < 5 * prompt


# --- what it holds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "qwen3-next"])
def test_switched_off_nothing_stays_and_nothing_is_shared(arch):
    member = tiny.member(arch, 1, prefix_cache=False)
    queries = [tiny.query(STORY * 3 + text) for text in ("Why?", "How?")]
    for reply in member.draft([DraftJob(query, (), 4, 40, Sampling()) for query in queries]):
        assert reply.effort.reused == 0
    for query in queries:
        member.forget(query.id)
    assert member.prefixes == {"prefixes": 0, "tokens": 0, "bytes": 0}
    assert drafted(member, tiny.query(STORY * 3 + "Why?")).effort.reused == 0


@pytest.mark.parametrize("arch", ["llama", "qwen3-next"])
def test_it_never_holds_more_than_its_bound_and_the_least_recently_used_goes_first(arch):
    texts = [f"{k} {STORY}" * 2 for k in ("One", "Big", "car")]
    free = tiny.member(arch, 1)
    drafted(free, query := tiny.query(texts[0]))
    free.forget(query.id)
    each = free.prefixes["bytes"]
    member = tiny.member(arch, 1, prefix_cache=int(2.5 * each))
    for text in (*texts[:2], texts[0], texts[2]):
        query = tiny.query(text)
        drafted(member, query)
        member.forget(query.id)
        assert 0 < member.prefixes["bytes"] <= 2.5 * each
    found = {text: drafted(member, tiny.query(text)).effort.reused > 20 for text in (texts[2], texts[0], texts[1])}
    assert found == {texts[2]: True, texts[0]: True, texts[1]: False}


def test_a_prefix_too_long_for_its_bound_is_kept_in_part():
    member, query = tiny.member("llama", 1, prefix_cache=20_000), tiny.query(STORY * 6)
    drafted(member, query)
    member.forget(query.id)
    assert 15_000 < member.prefixes["bytes"] <= 20_000
    draft = drafted(member, again := tiny.query(STORY * 6))
    assert 10 < draft.effort.reused == member.prefixes["tokens"] < draft.effort.prompt
    assert tiny.difference(draft, drafted(tiny.rereading(member), again)) < NEAR


def test_queries_under_way_come_first():
    """Prefixes give way to rows, and no row to a prefix."""
    member = tiny.member("llama", 1)
    for text in ("one", "two", "three"):
        drafted(member, query := tiny.query(f"{text} {STORY}" * 2))
        member.forget(query.id)
    assert member.prefixes["prefixes"] == 3
    store = member.store
    open_queries = [tiny.query(f"{k} {STORY}") for k in range(3)]
    store.budget = 4 * 256 * store._bytes_per_token()
    replies = member.draft([DraftJob(query, (), 3, 40, Sampling()) for query in open_queries])
    assert {key.query_id for key in store.rows} == {query.id for query in open_queries}
    assert store._bytes() + store.prefixes.bytes <= store.budget
    for query, reply in zip(open_queries, replies, strict=True):
        assert tiny.difference(reply, drafted(tiny.rereading(member), query, 3)) < NEAR
    drafted(member, query := tiny.query(f"two {STORY}"))
    assert store._bytes() + store.prefixes.bytes <= store.budget or not store.prefixes.kept


def test_what_is_let_go_of_for_a_query_may_still_be_what_it_begins_with():
    member, query = tiny.member("llama", 1), tiny.query(STORY * 3)
    drafted(member, query)
    member.forget(query.id)
    member.store.budget = 1  # one row and nothing else
    draft = drafted(member, again := tiny.query(STORY * 3 + "So?"))
    assert member.prefixes["prefixes"] == 0
    assert draft.effort.reused > 0.8 * draft.effort.prompt
    assert tiny.difference(draft, drafted(tiny.rereading(member), again)) < NEAR


def test_a_conversation_is_kept_once_however_many_turns_it_has():
    member, query = tiny.member("llama", 1), tiny.query(STORY)
    for _ in range(5):
        draft = drafted(member, query, 6)
        member.forget(query.id)
        query = turned(query, (Segment(draft.text),), "And then?")
    assert member.prefixes["tokens"] < 2.2 * len(member._prompt_ids(query.turns))


@pytest.mark.parametrize("arch", ["llama", "qwen3-next"])
def test_what_was_kept_can_be_dropped_and_goes_with_the_member(arch):
    member = tiny.member(arch, 1)
    for end in (member.drop_prefixes, member.unload):
        drafted(member, query := tiny.query(STORY))
        member.forget(query.id)
        assert member.prefixes["bytes"] > 0
        assert f"{member.prefixes['tokens']} tokens kept" in repr(member)
        end()
        assert member.prefixes == {"prefixes": 0, "tokens": 0, "bytes": 0}
        assert drafted(member, query).effort.reused == 0
        member.unload()


@pytest.mark.parametrize("wrong", [-1, "2GB", 0.5, None])
def test_a_bound_that_is_none_is_refused(wrong):
    with pytest.raises(UsageError, match="prefix_cache") as error:
        tiny.TransformersMember("any", prefix_cache=wrong)
    assert "->" in "".join(error.value.__notes__)


# --- what goes wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3-next"])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_nothing_of_a_pass_that_broke_off_is_ever_used(arch, at):
    member, query = tiny.member(arch, 1), tiny.query(STORY * 2)
    calls = []

    def breaks(module, arguments):
        calls.append(1)
        if len(calls) == at:
            raise RuntimeError("the device is gone")

    # Between two layers: the first has written down what it read, the second has not.
    hook = member.store.read.model.model.layers[-1].register_forward_pre_hook(breaks)
    (told,) = member.draft([DraftJob(query, (), 4, 64, Sampling())])
    hook.remove()
    assert isinstance(told, Failure)
    assert "gone" in told.message
    member.forget(query.id)
    again = tiny.query(STORY * 2)
    assert tiny.difference(drafted(member, again), drafted(tiny.rereading(member), again)) < NEAR


def test_when_memory_runs_out_what_other_members_keep_on_the_device_goes_too(monkeypatch):
    idle, member = tiny.member("gemma3", 1), tiny.member("llama", 1)
    drafted(idle, query := tiny.query(STORY))
    idle.forget(query.id)
    honest, tries = member.store.lead, []

    def lead(wants, exact=False):
        tries.append(len(wants))
        if len(tries) == 1:
            raise torch.OutOfMemoryError("no room")
        return honest(wants, exact)

    monkeypatch.setattr(member.store, "lead", lead)
    assert idle.prefixes["bytes"] > 0
    replies = member.draft([DraftJob(tiny.query(text), (), 4, 9, Sampling()) for text in ("Why?", "How?")])
    assert all(isinstance(reply, Draft) for reply in replies) and tries == [2, 1, 1]
    assert idle.prefixes["bytes"] == 0


# --- the store and its shelf ------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral", "gpt2", "qwen3-next"])
def test_a_stores_random_life_with_prefixes(arch):
    """As the slab's own, with lists of tokens that begin alike, and now and then go back and on otherwise."""
    chance = random.Random(11)
    model, _ = tiny.made(arch)
    read, limit = Read(model), 200_000
    windows = Slab.windows_of(model.config) if arch in tiny.SLAB else None
    store = Slab(read, windows, None, limit) if windows else Snapshots(read, limit=limit)
    truth, texts, old = Rereading(read), {}, [[]]

    def tokens(count):
        return [chance.randrange(10, 300) for _ in range(count)]

    for turn in range(80):
        keys = chance.sample("abcdef", chance.randrange(1, 5))
        for key in keys:
            base = chance.choice(old)
            fresh = base[: chance.randrange(len(base) + 1)] + tokens(chance.randrange(1, 20))
            kept = texts.get(key, fresh)
            kept = kept[: chance.randrange(1, len(kept) + 1)] if chance.random() < 0.3 else kept
            texts[key] = kept + tokens(chance.randrange(0, 5))
            old.append(texts[key])
        wants = [(key, texts[key]) for key in keys]
        check(store.lead(wants, exact=True), truth.lead(wants), turn)
        for _ in range(chance.randrange(3)):
            new = tokens(len(keys))
            check(store.step(keys, new), truth.step(keys, new), turn)
            for key, token in zip(keys, new, strict=True):
                texts[key] = [*texts[key], token]
        for key in keys:
            if chance.random() < 0.5:
                store.forget(key)
                texts.pop(key)
        assert store.prefixes.bytes <= limit
    assert store.reused > 200


@torch.inference_mode()
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_what_followed_a_text_that_was_taken_back_does_not_follow_another(arch):
    model, _ = tiny.made(arch)
    store, truth = Slab(Read(model), Slab.windows_of(model.config), None, 10**6), Rereading(Read(model))
    first, other = list(range(20, 40)), list(range(60, 90))
    store.lead([("a", first)])
    store.lead([("a", first[:10] + other)])
    store.forget("a")
    wants = [("b", (first[:10] + other)[: len(first)])]
    check(store.lead(wants), truth.lead(wants), 0)
    assert store.found["b"] == len(first) - 1


def test_prefixes_are_kept_once_and_the_shorter_gives_way():
    shelf = Prefixes(1000)
    for ids in ([1, 2, 3, 4], [1, 2], [1, 2, 3, 4, 5], [1, 2, 3, 9, 9, 9]):
        shelf.keep(Prefix(ids, bytes=10), lambda: None, 1000)
    assert [prefix.ids for prefix in shelf.kept] == [[1, 2, 3, 4, 5], [1, 2, 3, 9, 9, 9]]
    shelf.keep(Prefix([7], bytes=10), lambda: None, 1000, [Prefix([7, 8])])
    assert len(shelf.kept) == 2
    states = Prefixes(1000, whole=True)
    for ids in ([1, 2, 3], [1, 2], [1, 2, 3]):
        states.keep(Prefix(ids, bytes=10), lambda: None, 1000)
    assert [prefix.ids for prefix in states.kept] == [[1, 2], [1, 2, 3]]


def test_memory_is_only_asked_for_what_is_kept():
    shelf = Prefixes(100)

    def never():
        raise AssertionError

    shelf.keep(Prefix([1, 2], bytes=200), never, 1000)
    shelf.keep(Prefix([1, 2], bytes=60), never, 50)
    shelf.least = 3
    shelf.keep(Prefix([1, 2], bytes=60), never, 1000)
    assert not shelf.kept


def test_no_more_are_kept_than_can_be_looked_through(monkeypatch):
    monkeypatch.setattr(_prefixes, "MOST", 3)
    shelf = Prefixes(10**9)
    for k in range(9):
        shelf.keep(Prefix([k], bytes=1), lambda: None, 10**9)
    assert [prefix.ids for prefix in shelf.kept] == [[6], [7], [8]]


def test_the_closest_is_who_shares_most_then_who_knows_the_end_then_the_last():
    end = {3: torch.zeros(1)}
    knows, other, short = Prefix([1, 2, 3], ends=end), Prefix([1, 2, 3, 4]), Prefix([1, 2])
    assert closest([knows, other, short], [1, 2, 3]) == (knows, 3)
    assert closest([knows, other, short], [1, 2, 3, 4, 5]) == (other, 4)
    assert closest([knows, other, short], [1, 2, 9]) == (short, 2)
    assert closest([knows], [9]) == (None, 0)
    assert longest_whole([knows, other, short], [1, 2, 3, 9]) is knows
    assert longest_whole([knows], [1, 2]) is None


def test_common_prefixes_of_random_lists():
    chance = random.Random(5)
    for _ in range(300):
        one, other = ([chance.randrange(2) for _ in range(chance.randrange(9))] for _ in range(2))
        told = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        assert common_prefix(one, other) == told


def test_scores_of_a_query_that_is_only_voted_on_come_from_prefixes_too():
    member = tiny.member("llama", 1)
    for text in ("Why?", "How?"):
        job = ScoreJob(tiny.query(STORY * 3 + text), (Segment("The"),), (Candidate(" sky", True, ("x",)),))
        (scored,) = member.score([job])
        assert isinstance(scored, Scored)
        assert tiny.difference(scored, tiny.rereading(member).score([job])[0]) < NEAR
        member.forget(job.query.id)
    assert scored.effort.reused > 50
