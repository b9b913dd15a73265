"""Members of one base share its weights, and with the same adapter batches; each replies as with
weights of its own."""

import gc
import math
import random
import threading
import time
from dataclasses import replace

import pytest
import torch

from langchain_specfuse.core.values import Candidate, DraftJob, Sampling, ScoreJob, Segment
from langchain_specfuse.members.local import strands
from langchain_specfuse.members.transformers.lora import Adapters
from langchain_specfuse.members.transformers.member import TransformersMember

from .. import tiny
from ..lora import Family, adapter, saved
from ..tiny import NEAR
from .test_masking import BOUND
from .test_thinking import KNOWS

STORY = "The sky is blue because the air scatters blue light more than red light. "
GIVEN = {"dtype": "float32", "device": "cpu"}


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch):
    """Keep prefixes even of tiny prompts."""
    monkeypatch.setattr(strands, "SHORTEST", 1)


@pytest.fixture
def family(tmp_path):
    """Return a factory of members of one saved base: without an adapter, with one, with another,
    and with a system prompt."""

    def make(arch="llama", **options):
        base = saved(arch, tmp_path / "base")
        first, with_first = adapter(arch, tmp_path / "first", 1)
        other, with_other = adapter(arch, tmp_path / "other", 2, r=2, lora_alpha=5)
        arguments = GIVEN | options
        members = [
            TransformersMember(base, name="plain", **arguments),
            TransformersMember(base, adapter=first, name="first", **arguments),
            TransformersMember(base, adapter=str(other), name="other", **arguments),
            TransformersMember(
                base, adapter=first, name="brief", system_prompt="Be brief.", **arguments
            ),
        ]
        return Family(members, [None, with_first, with_other, with_first])

    return make


def write(family, query, size=4, turns=3, how=Sampling()):  # noqa: B008
    """Write an answer in which the members take turns and all score each other."""
    answer = ()
    for turn in range(turns):
        drafts = family.drafts(query, answer, size, how)
        family.scores(query, answer, drafts)
        won = drafts[family.members[turn % len(family.members)].name]
        tokens_by_author = {
            name: draft.tokens for name, draft in drafts.items() if draft.text == won.text
        }
        answer = (*answer, Segment(won.text, False, tokens_by_author))


def test_members_of_one_adapter_exclude_first_tokens_each_for_itself(family):
    made = family()
    _, first, _, brief = made.members
    query = tiny.query()
    jobs = [(member, DraftJob(query, (), 6, 64, Sampling())) for member in (first, brief)]
    plain, other = made.replies("draft", jobs)
    restricted = replace(jobs[0][1], excluded=plain.tokens[:1])
    together = made.replies("draft", [(first, restricted), jobs[1]])
    assert made.worst < NEAR
    assert together[0].tokens[0] != plain.tokens[0]
    assert together[0].others and not together[1].others
    assert together[1].tokens == other.tokens


def draft_jobs(members, query, answer=(), size=4):
    return [(member, DraftJob(query, answer, size, 64, Sampling())) for member in members]


# --- shared batches -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "how"),
    [
        pytest.param("llama", Sampling(0.9, seed=5), id="llama-sampled"),
        *(
            pytest.param(
                arch, Sampling(), id=arch, marks=() if arch == "gemma3" else [pytest.mark.long]
            )
            for arch in ["gemma3", "gpt2", "phi3", "opt", "qwen3-next"]
        ),
    ],
)
def test_every_reply_in_a_shared_batch_equals_that_of_the_merged_model_alone(arch, how, family):
    """The architectures have full attention, windows, transposed weights, fused projections,
    flattened rows and recurrent states."""
    group = family(arch)
    for text in ("Why is the sky blue?", STORY + "Why?"):
        write(group, query := tiny.query(text), 4, 3, how)
        group.forget(query)
    assert group.count > 30 and group.worst < NEAR


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_members_of_one_base_hold_it_once_and_share_batches_by_adapter(arch, family):
    group = family(arch)
    group.drafts(tiny.query())
    assert len({id(member.cache.weights.model) for member in group.members}) == 1
    plain, first, other, brief = (member.batch_group for member in group.members)
    assert first is brief and len({id(plain), id(first), id(other)}) == 3


@pytest.mark.parametrize("arch", ["gemma3", pytest.param("qwen3-next", marks=pytest.mark.long)])
def test_replies_stay_equal_over_a_long_random_life(arch, family):
    """Queries of random members start alike, share batches or not, and are scored, ended and
    forgotten at random."""
    chance, group = random.Random(arch), family(arch)
    words, known, going = STORY.split(" "), [STORY.split(" ")], {}
    texts = [" the air", " blue because", " 天", "", " is red, and so"]
    for _ in range(8):
        for _ in range(chance.randint(0, 2)):
            base = chance.choice(known)
            known.append(
                [
                    *base[: chance.randint(0, len(base))],
                    *chance.choices(words, k=chance.randint(1, 9)),
                ]
            )
            query = tiny.query(" ".join(known[-1]))
            going[query.id] = (
                query,
                (),
                Sampling(chance.choice([0.0, 0.9]), seed=chance.randint(0, 9)),
            )
        pairs = [
            (member, *going[key])
            for member in group.members
            for key in going
            if chance.random() < 0.5
        ]
        chance.shuffle(pairs)
        jobs = [
            (member, DraftJob(query, answer, 3, 40, how)) for member, query, answer, how in pairs
        ]
        votes = [
            (
                member,
                ScoreJob(
                    query,
                    answer,
                    tuple(Candidate(t, not t, ("x",)) for t in chance.sample(texts, 2)),
                ),
            )
            for member, query, answer, _ in pairs
            if chance.random() < 0.6
        ]
        replies = group.replies("draft", jobs)
        group.replies("score", votes)
        for (member, job), reply in zip(jobs, replies, strict=True):
            query, answer, how = going[job.query.id]
            if answer == job.answer:
                own_segment = Segment(reply.text, tokens={member.name: reply.tokens})
                going[query.id] = (
                    query,
                    (*answer, chance.choice([own_segment, Segment(" and so on")])),
                    how,
                )
        for key in [key for key in going if chance.random() < 0.3]:
            group.forget(going.pop(key)[0])
        if chance.random() < 0.2:
            chance.choice(group.members).unload()
    assert group.count > 25 and group.worst < NEAR


@pytest.mark.parametrize("kind", ["schema", "choice"])
def test_constrained_replies_in_a_shared_batch_equal_those_alone(kind, family):
    group, query = family(), tiny.query(constraint=BOUND[kind])
    group.scores(query, (), group.drafts(query))
    assert group.worst < NEAR


def test_the_time_of_a_batch_is_counted_once(family):
    members = family().members
    members[0].probe()
    since = time.perf_counter()
    replies = members[0].draft([job for _, job in draft_jobs(members, tiny.query("Why?"))])
    assert 0 < math.fsum(reply.effort.seconds for reply in replies) <= time.perf_counter() - since


def test_members_may_think_and_end_their_turns_differently(tmp_path):
    base = saved("llama", tmp_path / "base")
    settings = [
        {"chat_template": KNOWS, "thinking_tokens": 12},
        {"chat_template": KNOWS, "thinking_tokens": 0},
        {"chat_template": "plain"},
    ]
    members = [
        TransformersMember(base, name=f"m{k}", **GIVEN, **more) for k, more in enumerate(settings)
    ]
    group = Family(members, [None] * 3)
    write(group, tiny.query(), 8)
    assert group.members[0].batch_group is group.members[2].batch_group and group.worst < NEAR


# --- reuse of text --------------------------------------------------------------------------------


def test_text_read_with_one_adapter_is_reused_by_that_adapter_only(family):
    group = family()
    plain, first, other, _ = group.members
    reused = {}
    for name, member in (("", first), ("plain", plain), ("other", other), ("first", first)):
        (draft,) = member.draft([DraftJob(query := tiny.query(STORY * 3), (), 3, 64, Sampling())])
        member.forget(query.id)
        reused[name] = draft.effort.reused
    assert reused == {"": 0, "plain": 0, "other": 0, "first": draft.effort.prompt}
    drafts = group.drafts(tiny.query(STORY * 3 + "Why?"))
    assert group.worst < NEAR and drafts["plain"].effort.reused > 0


# --- unloading ------------------------------------------------------------------------------------


def test_unloading_one_member_leaves_the_others_working(family):
    group = family()
    for leaving in range(3):
        unload_one(group, leaving, tiny.query(STORY + "Why? " * leaving))


def unload_one(group, leaving, query):
    group.drafts(query)
    unloaded, stays = group.members[leaving], group.members[leaving - 1]
    size = lambda: sum(member.numel() for member in stays.cache.weights.model.parameters())
    parameters = size()
    unloaded.unload()
    gc.collect()
    assert unloaded.batch_group is None
    assert (size() < parameters) == (leaving == 2)  # another member still uses the other adapters
    answer = (Segment(" So it is."),)
    group.replies(
        "draft",
        draft_jobs([member for member in group.members if member is not unloaded], query, answer),
    )
    group.drafts(query, answer)  # it loads again
    assert unloaded.cache.weights is stays.cache.weights and group.worst < NEAR


def test_unloading_a_member_during_a_batch_fails_no_other_job_and_leaves_nothing(family):
    made, query = family(), tiny.query(STORY)
    made.drafts(tiny.query("Why?"))
    unloaded, other = made.members[1], made.members[3]
    passes = []
    group = unloaded.batch_group

    def unload(*_):
        passes.append(1)
        if len(passes) == 3:
            unloaded.unload()

    gone, kept = (member.loaded.key(query.id) for member in (unloaded, other))
    hook = group.cache.weights.model.register_forward_pre_hook(unload)
    (_, _), (_, job) = jobs = draft_jobs([unloaded, other], query)
    _, reply = group.draft(jobs)
    hook.remove()
    assert unloaded.batch_group is None and not unloaded.states
    assert gone not in group.cache.trunks and kept in group.cache.trunks
    (truth,) = made.twins[other].draft([job])
    assert tiny.difference(reply, truth) < NEAR


def test_loading_an_adapter_waits_for_the_current_pass(tmp_path):
    model, _ = tiny.build("llama", 1)
    adapters = Adapters(model)
    first, other = (str(adapter("llama", tmp_path / f"a{seed}", seed)[0]) for seed in (3, 4))
    passes = lambda: model(input_ids=torch.tensor([[5, 6, 7]], device=tiny.DEVICE)).logits
    with torch.inference_mode():
        plain = passes()
        with adapters.reading(loaded := adapters.get(first, "one")):
            before = passes()
            thread = threading.Thread(target=adapters.get, args=(other, "other"))
            thread.start()
            thread.join(0.2)
            assert thread.is_alive() and torch.equal(passes(), before)
        thread.join()
        with adapters.reading(loaded):
            assert torch.equal(passes(), before)
        adapters.off()
        assert torch.equal(passes(), plain) and not torch.equal(before, plain)
