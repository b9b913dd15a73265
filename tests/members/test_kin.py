"""Members of one base are in memory once and work in one batch; each answers as with weights of its own."""

import gc
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
    ScoreJob,
    Segment,
    Settings,
    Turn,
)
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.desk import desk_for
from langchain_specfuse.members import _graphs, _kin, _prefixes, _trial
from langchain_specfuse.members._adapters import Adapters
from langchain_specfuse.members._leaps import Leaps
from langchain_specfuse.members._slab import Slab
from langchain_specfuse.members._snapshots import Snapshots
from langchain_specfuse.members.transformers import TransformersMember

from . import tiny
from .adapters import Family, adapter, saved
from .tape import Taped
from .test_lookahead import guessing, hints_for
from .test_masking import BOUND
from .test_thinking import KNOWS
from .test_transformers_cache import NEAR

SLABS = ["llama", "gemma3", "gpt2", "phi3", "opt"]
"""Full attention, windows, transposed weights, fused projections, flattened rows."""
ONE_BY_ONE = ["qwen3-next", "lfm2"]
STORY = "The sky is blue because the air scatters blue light more than red light. "


@pytest.fixture(autouse=True)
def every_token_counts(monkeypatch):
    """Tiny prompts are worth keeping here."""
    monkeypatch.setattr(_prefixes, "LEAST", 1)


@pytest.fixture
def family(tmp_path):
    """Makes members of one saved base: with none, one and another adapter, and the latter with a prompt and a seed."""

    def make(arch="llama", **told):
        base = saved(arch, tmp_path / "base")
        first, with_first = adapter(arch, tmp_path / "first", 1)
        other, with_other = adapter(arch, tmp_path / "other", 2, r=2, lora_alpha=5)
        given = {"dtype": "float32", "device": "cpu"} | told
        members = [
            TransformersMember(base, name="plain", **given),
            TransformersMember(base, adapter=first, name="first", **given),
            TransformersMember(base, adapter=str(other), name="other", **given),
            TransformersMember(base, adapter=first, name="seeded", seed=7, system_prompt="Be brief.", **given),
        ]
        return Family(members, [None, with_first, with_other, with_first])

    return make


def candidates(drafts):
    by_text = {}
    for name, draft in drafts.items():
        by_text.setdefault((draft.text, draft.ended), []).append(name)
    return tuple(Candidate(text, ended, tuple(names)) for (text, ended), names in by_text.items())


def written(family, query, size, turns, how=Sampling()):  # noqa: B008
    """An answer that the members write in turn, everybody scoring everybody."""
    answer = ()
    for turn in range(turns):
        drafts = family.drafts(query, answer, size, how)
        family.scores(query, answer, candidates(drafts))
        won = drafts[family.members[turn % len(family.members)].name]
        own = {name: draft.tokens for name, draft in drafts.items() if draft.text == won.text}
        answer = (*answer, Segment(won.text, False, own))
    return answer


# --- the same alone and together --------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [*SLABS, *ONE_BY_ONE])
@pytest.mark.parametrize("how", [Sampling(), Sampling(0.9, seed=5)], ids=["greedy", "warm"])
def test_every_reply_in_a_shared_batch_equals_that_of_the_merged_model_alone(arch, how, family):
    made = family(arch)
    for text in ("Why is the sky blue?", STORY + "Why?"):
        written(made, query := tiny.query(text), 4, 5, how)
        made.forget(query)
    assert made.compared == 2 * 5 * 2 * 4 or made.compared > 50
    assert made.worst < NEAR


@pytest.mark.parametrize(
    ("arch", "cache_bytes", "how"),
    [
        ("llama", None, Sampling()),
        ("llama", 60_000, Sampling()),
        ("gemma3", None, Sampling(0.9, seed=5)),
        ("gemma3", 60_000, Sampling(0.9, seed=5)),
    ],
    ids=["llama", "llama, short memory", "gemma3", "gemma3, short memory"],
)
def test_guesses_in_a_shared_batch_change_nothing(arch, how, cache_bytes, family):
    """Each is told hints of its own, some that come true; one of them is asked for a draft without any."""
    made, chance, answer, read_along = family(arch, cache_bytes=cache_bytes), random.Random(arch), (), 0
    assert len({id(guessing(one).drawing.lookahead) for one in made.members}) == 1
    query = tiny.query("The sky is blue because the sky is blue because")
    for turn in range(6):
        plain = {one: DraftJob(query, answer, 4 + turn % 3, 64, how) for one in made.members}
        truth = {one: made.twins[one].draft([job])[0] for one, job in plain.items()}
        hinted = [(one, replace(job, hints=hints_for(truth[one], chance))) for one, job in plain.items()]
        hinted[turn % 4] = (made.members[turn % 4], plain[made.members[turn % 4]])
        drafts = made.told("draft", hinted)
        read_along += sum(len(one._memo(query).known(one._context(job))) for one, job in hinted)
        fresh = Candidate(" one more", False, ("x",))
        made.told("score", [(one, ScoreJob(query, answer, (fresh, *(job.hints or ())))) for one, job in hinted])
        won, author = drafts[turn % 4], made.members[turn % 4].name
        answer = (*answer, Segment(won.text, False, {author: won.tokens}))
    assert made.compared == 6 * 2 * 4 and read_along > 10
    assert made.worst < NEAR


@pytest.mark.parametrize("arch", SLABS)
def test_members_of_one_base_hold_it_once_and_share_their_memory(arch, family):
    made = family(arch)
    assert len({id(one._weights.model) for one in made.members}) == 1
    assert len({id(one.store) for one in made.members}) == len({id(one.kin) for one in made.members}) == 1
    assert isinstance(made.members[0].store, Slab)
    assert made.members[1].adapted is made.members[3].adapted


@pytest.mark.parametrize("arch", ONE_BY_ONE)
def test_states_that_cannot_be_cut_share_weights_and_keep_memories_apart(arch, family):
    made = family(arch)
    assert len({id(one._weights.model) for one in made.members}) == 1
    assert len({id(one.store) for one in made.members}) == 4
    assert all(isinstance(one.store, Snapshots) for one in made.members)


def test_the_adapters_matter_or_these_tests_would_not(family):
    drafts = family().drafts(tiny.query(), size=8)
    assert len({draft.text for name, draft in drafts.items() if name != "seeded"}) == 3


def test_one_pass_reads_the_drafts_of_all(family, monkeypatch):
    made = family()
    made.drafts(query := tiny.query(), size=4)
    passes, honest = [], Slab._pass

    def counted(self, ids, *rest, **more):
        passes.append((self, len(ids)))
        return honest(self, ids, *rest, **more)

    monkeypatch.setattr(Slab, "_pass", counted)
    jobs = [(one, DraftJob(query, (Segment("Well, "),), 4, 64, Sampling())) for one in made.members]
    replies = made.members[0].kin.draft(jobs)
    longest = max(len(reply.tokens) for reply in replies)
    assert {store for store, _ in passes} == {made.members[0].store}
    assert max(rows for _, rows in passes) == 4
    assert len(passes) <= 4 + 2 * longest + 12  # one by one it would be four times as many


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3-next"])
def test_a_long_random_life(arch, family):
    """Queries of some members, in batches and alone, begun as others were, voted on, ended and forgotten at random."""
    chance, made = random.Random(arch), family(arch)
    words, known, going = STORY.split(" "), [STORY.split(" ")], {}
    for _ in range(14):
        for _ in range(chance.randint(0, 2)):
            base = chance.choice(known)
            known.append([*base[: chance.randint(0, len(base))], *chance.choices(words, k=chance.randint(1, 9))])
            query = tiny.query(" ".join(known[-1]))
            going[query.id] = (query, (), Sampling(chance.choice([0.0, 0.9]), seed=chance.randint(0, 9)))
        pairs = [(one, *going[key]) for one in made.members for key in going if chance.random() < 0.5]
        chance.shuffle(pairs)
        jobs = [(one, DraftJob(query, answer, 3, 40, how)) for one, query, answer, how in pairs]
        votes = [
            (one, ScoreJob(query, answer, tuple(Candidate(t, not t, ("x",)) for t in chance.sample(TEXTS, 2))))
            for one, query, answer, _ in pairs
            if chance.random() < 0.6
        ]
        replies = made.told("draft", jobs) if jobs else []
        if votes:
            made.told("score", votes)
        for (one, job), reply in zip(jobs, replies, strict=True):
            query, answer, how = going[job.query.id]
            if answer == job.answer:
                own = Segment(reply.text, tokens={one.name: reply.tokens})
                going[query.id] = (query, (*answer, chance.choice([own, Segment(" and so on")])), how)
        for key in [key for key in going if chance.random() < 0.3]:
            made.forget(going.pop(key)[0])
        if chance.random() < 0.2:
            chance.choice(made.members).unload()
    assert made.compared > 40 and made.worst < NEAR


TEXTS = [" the air", " blue because", " 天", "", " is red, and so"]


@pytest.mark.parametrize("kind", ["schema", "choice", "regex"])
def test_under_a_constraint(kind, family):
    made, query = family(), tiny.query(constraint=BOUND[kind])
    drafts = made.drafts(query)
    made.scores(query, (), candidates(drafts))
    assert made.worst < NEAR


def test_thoughts_of_kin_are_drawn_together_and_are_each_its_own(family):
    made = family(chat_template=KNOWS, thinking_tokens=10)
    drafts = made.drafts(tiny.query())
    assert made.worst < NEAR
    assert len({draft.thought for draft in drafts.values()}) > 2
    assert [draft.thought for draft in drafts.values()] == [
        twin.draft([DraftJob(tiny.query(), (), 4, 64, Sampling())])[0].thought for twin in made.twins.values()
    ]


def test_members_that_penalise_otherwise_think_and_draft_each_in_its_own_way(tmp_path):
    base = saved("llama", tmp_path / "base")
    told = {"dtype": "float32", "device": "cpu", "chat_template": KNOWS, "thinking_tokens": 12}
    members = [TransformersMember(base, name=f"p{p}", repetition_penalty=p, **told) for p in (1.0, 1.0001, 3.0)]
    made = Family(members, [None] * 3)
    made.drafts(tiny.query(), size=8)
    assert made.members[0].kin is made.members[2].kin and made.worst < NEAR


def test_a_base_that_is_alone_with_its_adapter(tmp_path):
    base = saved("llama", tmp_path / "base")
    folder, merged = adapter("llama", tmp_path / "one", 3)
    made = Family([TransformersMember(base, adapter=folder, dtype="float32", device="cpu")], [merged])
    written(made, tiny.query(), 4, 4)
    assert made.members[0].name == "one"
    assert made.worst < NEAR


# --- what one has read ------------------------------------------------------------------------------------------


def test_what_was_read_with_one_adapter_is_of_use_to_that_adapter_alone(family):
    made, text = family(), STORY * 3
    plain, first, other, _ = made.members
    (draft,) = first.draft([DraftJob(query := tiny.query(text), (), 3, 64, Sampling())])
    first.forget(query.id)
    asked = {}
    for one in (plain, other, first):
        (draft,) = one.draft([DraftJob(again := tiny.query(text), (), 3, 64, Sampling())])
        asked[one.name] = draft.effort.reused
        one.forget(again.id)
    assert asked == {"plain": 0, "other": 0, "first": draft.effort.prompt}
    made.drafts(tiny.query(text + "Why?"))
    assert made.worst < NEAR


def test_queries_under_way_do_not_lend_their_beginning_to_another_adapter(family):
    made = family()
    drafts = made.drafts(tiny.query(STORY * 3))
    assert [drafts[name].effort.reused for name in ("plain", "first", "other")] == [0, 0, 0]
    assert made.worst < NEAR


def test_members_of_one_adapter_keep_together_what_they_read(family):
    made = family()
    plain, first, other, seeded = made.members
    for one in made.members:
        one.draft([DraftJob(query := tiny.query(STORY * 2), (), 3, 64, Sampling())])
        one.forget(query.id)
    assert first.prefixes == seeded.prefixes and first.prefixes["prefixes"] == 2
    assert plain.prefixes["prefixes"] == other.prefixes["prefixes"] == 1
    seeded.unload()
    assert first.prefixes["prefixes"] == 2  # it has that adapter, too
    first.drop_prefixes()
    assert first.prefixes["prefixes"] == 0 and plain.prefixes["prefixes"] == other.prefixes["prefixes"] == 1


def test_the_same_tokens_are_kept_once_for_each_adapter():
    kept = _prefixes.Prefixes(10**6)
    for mark in (0, 1, 1, 0):
        kept.keep(_prefixes.Prefix([1, 2, 3], bytes=8, mark=mark), lambda: None, 10**6)
    assert sorted(prefix.mark for prefix in kept.kept) == [0, 1]
    kept.drop(1)
    assert [prefix.mark for prefix in kept.kept] == [0]


# --- one leaves -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaving", [0, 1, 2, 3])
def test_when_one_is_unloaded_in_the_middle_the_others_go_on_as_if_nothing_were(leaving, family):
    made, query = family(), tiny.query(STORY)
    made.drafts(query)
    gone = made.members[leaving]
    held = made.members[0]._weights.adapters.bytes
    gone.unload()
    assert gone.kin is None and gone.adapted is None
    gc.collect()
    weights = made.members[leaving - 1]._weights
    assert weights.adapters.bytes == held if leaving in (0, 1, 3) else weights.adapters.bytes < held
    rest = [one for one in made.members if one is not gone]
    jobs = [(one, DraftJob(query, (Segment(" So it is."),), 4, 64, Sampling())) for one in rest]
    made.told("draft", jobs)
    made.drafts(query, (Segment(" So it is."),))  # it comes back
    assert gone.kin is made.members[leaving - 1].kin
    assert made.worst < NEAR


def test_when_all_are_unloaded_nothing_is_left(family):
    made = family()
    made.drafts(tiny.query(STORY))
    weights, kin = made.members[0]._weights, made.members[0].kin
    for one in made.members:
        one.unload()
    gc.collect()
    assert weights.adapters.bytes == 0 and not kin.store.rows and not kin.store.prefixes.kept
    del kin
    gc.collect()
    assert not weights.kin
    assert not any(module._forward_hooks for module in weights.model.modules())


def test_a_job_that_waited_while_its_member_was_unloaded_is_answered_all_the_same(family):
    made, query = family(), tiny.query()
    kin = made.members[0].kin
    made.members[2].unload()
    replies = kin.draft([(one, DraftJob(query, (), 4, 64, Sampling())) for one in made.members])
    for one, reply in zip(made.members, replies, strict=True):
        assert tiny.difference(reply, made.twins[one].draft([DraftJob(query, (), 4, 64, Sampling())])[0]) < NEAR


def test_one_that_does_not_fit_its_context_fails_alone(family):
    made = family()
    asked = [tiny.query(), tiny.query("word " * 3000), tiny.query(), tiny.query()]
    jobs = [(one, DraftJob(q, (), 4, 64, Sampling())) for one, q in zip(made.members, asked, strict=True)]
    replies = made.members[0].kin.draft(jobs)
    assert [isinstance(reply, Failure) for reply in replies] == [False, True, False, False]


def test_when_memory_runs_out_each_job_is_tried_alone(family, monkeypatch):
    made, honest, sizes = family(), Slab._pass, []

    def short(self, ids, *rest, **more):
        sizes.append(len(ids))
        if len(ids) > 1:
            raise torch.OutOfMemoryError("no room")
        return honest(self, ids, *rest, **more)

    monkeypatch.setattr(Slab, "_pass", short)
    written(made, tiny.query(), 4, 3)
    assert max(sizes) > 1 and made.worst < NEAR


def test_a_pass_that_breaks_off_leaves_nothing_wrong_behind(family, monkeypatch):
    made, honest, query = family(), Slab._pass, tiny.query(STORY)
    for at in (1, 3, 6):
        calls = []

        def broken(self, *args, at=at, calls=calls, **more):
            calls.append(1)
            told = honest(self, *args, **more)
            if len(calls) == at:
                raise RuntimeError("broken")
            return told

        monkeypatch.setattr(Slab, "_pass", broken)
        told = made.members[0].kin.draft([(one, DraftJob(query, (), 6, 64, Sampling())) for one in made.members])
        assert all(isinstance(reply, Draft) for reply in told)  # each is tried again by itself
        monkeypatch.setattr(Slab, "_pass", honest)
        made.drafts(query)
    assert made.worst < NEAR


def test_a_short_memory_makes_it_slower_and_never_wrong(family):
    made = family(cache_bytes=150_000)
    queries = [tiny.query(STORY + text) for text in ("Why?", "How?")]
    for _ in range(2):
        jobs = [(one, DraftJob(query, (), 3, 64, Sampling())) for one in made.members for query in queries]
        made.told("draft", jobs)
    assert made.worst < NEAR


# --- who is kin -------------------------------------------------------------------------------------------------


def test_members_bounded_otherwise_share_weights_and_nothing_else(tmp_path):
    base = saved("llama", tmp_path / "base")
    told = [{}, {"prefix_cache": False}, {"cache_bytes": 10**7}, {"chat_template": "plain"}, {"seed": 3}]
    members = [
        TransformersMember(base, name=f"m{k}", dtype="float32", device="cpu", **more) for k, more in enumerate(told)
    ]
    for one in members:
        one.probe()
    assert len({id(one._weights) for one in members}) == 1
    assert len({id(one.kin) for one in members[:4]}) == 4 and members[4].kin is members[0].kin


def test_a_model_whose_rows_cannot_be_told_apart_gets_a_memory_per_member(family, monkeypatch):
    monkeypatch.setattr("langchain_specfuse.members._adapters._spread", lambda mask, inner: 1.0)  # everybody gets all
    made = family()
    assert len({id(one.store) for one in made.members}) == 3 + 1
    written(made, tiny.query(), 4, 3)
    assert made.worst < NEAR


def test_a_pass_in_another_thread_is_not_touched_by_what_this_one_is_aimed_at(tmp_path):
    """Members load while others work."""
    import threading

    base = saved("llama", tmp_path / "base")
    folder, _ = adapter("llama", tmp_path / "one", 3)
    one = TransformersMember(base, adapter=folder, dtype="float32", device="cpu")
    one.probe()
    model, told = one._weights.model, []
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        plain = model(input_ids=ids).logits
        with one._weights.adapters.reading([one.adapted]):
            thread = threading.Thread(target=lambda: told.append(model(input_ids=ids).logits))
            thread.start()
            thread.join()
            assert (model(input_ids=ids).logits - plain).abs().max() > 0.1
        assert torch.equal(model(input_ids=ids).logits, plain)
    assert torch.equal(told[0], plain)


def test_an_adapter_that_comes_during_a_pass_does_not_disturb_it(tmp_path):
    base = saved("llama", tmp_path / "base")
    (first, _), (other, _) = (adapter("llama", tmp_path / f"a{k}", k) for k in range(2))
    one = TransformersMember(base, adapter=first, dtype="float32", device="cpu")
    one.probe()
    adapters: Adapters = one._weights.adapters
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode(), adapters.reading([one.adapted]):
        before = one._weights.model(input_ids=ids).logits
        held = one._weights.adapted(str(other), "other")
        assert torch.equal(one._weights.model(input_ids=ids).logits, before)
    assert held.mark != one.adapted.mark


# --- a whole answer ---------------------------------------------------------------------------------------------


def test_an_answer_of_an_ensemble_is_the_same_with_shared_and_with_own_weights(family):
    made, query = family(), tiny.query(STORY + "Why?", Turn("system", "Be kind."))
    settings = Settings(segment_tokens=4, max_tokens=24, exit="never")
    desk = desk_for(made.members[0].device)
    desk.batches.clear()
    shared = list(Ensemble(made.members).rounds(query, settings))
    sizes = {size for names, work, size in desk.batches if work == "draft"}
    apart = list(Ensemble(list(made.twins.values())).rounds(query, settings))
    assert [(r.text, r.winner, r.finish) for r in shared] == [(r.text, r.winner, r.finish) for r in apart]
    assert sizes == {4}
    assert isinstance(shared[0].drafts["first"], Draft)


# --- in leaps, as far as that can be told without a GPU ------------------------------------------------------------


def captured(made):
    """As on a GPU, with all steps on tapes."""
    kin = made.members[0].kin
    kin.store.static = True
    leaps = Leaps(kin.store, made.members[0].stops, Taped(kin.store, "kin"))
    for one in made.members:
        one.drawing, one.thinking = replace(one.drawing, leaps=leaps), replace(one.thinking, leaps=leaps)
    return leaps.graphs


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_batch_with_an_adapter_takes_no_captured_step(arch, family):
    """Which row has which is no part of what a graph holds. Before, behind and beside it others do."""
    made = family(arch)
    graphs = captured(made)
    plain, adapted = made.members[0], made.members[1]
    apart, both = tiny.query("Why?"), tiny.query("Who?")
    replays = []
    for members, query in [
        ([plain], apart),
        ([plain, adapted], both),
        ([adapted], both),
        ([plain], apart),  # with rows of the others beside it
        ([adapted, plain], apart),
        ([plain], both),
    ]:
        made.told("draft", [(one, DraftJob(query, (Segment("Well"),), 6, 64, Sampling())) for one in members])
        replays.append(graphs.replayed)
    assert replays[0] and replays[0] == replays[1] == replays[2] < replays[3] == replays[4] < replays[5]
    assert made.worst < NEAR and not graphs.refused


def test_a_shared_memory_has_its_leaps_once(tmp_path, monkeypatch):
    """A trial clears the memory: whoever comes later must not take the queries of those who are at work."""
    monkeypatch.setattr(_graphs.Graphs, "fit", lambda store: True)
    monkeypatch.setattr(_trial, "Graphs", Taped)
    base, (first, _) = saved("llama", tmp_path / "base"), adapter("llama", tmp_path / "first", 1)
    given = {"dtype": "float32", "device": "cpu"}
    one = TransformersMember(base, name="plain", **given)
    job = DraftJob(tiny.query(), (), 6, 64, Sampling())
    (before,) = one.draft([job])
    late = TransformersMember(base, name="late", system_prompt="Be brief.", **given)
    adapted = TransformersMember(base, adapter=first, name="first", **given)
    slow = TransformersMember(base, name="slow", graphs=False, **given)
    details = [member.probe().detail for member in (one, late, adapted, slow)]
    assert ["captured" in detail for detail in details] == [True, True, False, False]
    assert one.drawing.leaps is late.drawing.leaps is adapted.thinking.leaps is not None
    assert slow.drawing.leaps is None and slow.kin is not one.kin
    assert one._key(job.query.id) in one.store.rows
    told = one.kin.draft([(one, job), (late, job), (adapted, job)])
    assert tiny.difference(told[0], before) < NEAR
    assert tiny.difference(slow.draft([job])[0], before) < NEAR


def test_a_member_that_cannot_share_a_pass_has_no_leaps(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(_graphs.Graphs, "fit", lambda store: True)
    monkeypatch.setattr(_trial, "Graphs", Taped)
    monkeypatch.setattr(_kin, "mixes", lambda *told: False)
    base, (first, _) = saved("llama", tmp_path / "base"), adapter("llama", tmp_path / "first", 1)
    one = TransformersMember(base, adapter=first, name="first", dtype="float32", device="cpu")
    assert "captured" not in one.probe().detail and one.drawing.leaps is None and not one.store.static
    assert "cannot be captured" not in caplog.text  # it was not tried
