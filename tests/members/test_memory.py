"""A memory budget makes members slower, never wrong: what lies on the device is within it, answers are the same."""

import threading

import pytest
import torch

from langchain_specfuse import SpecFuseChatModel
from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.values import DraftJob, Failure, Query, Sampling, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.evaluation.running import on_worker
from langchain_specfuse.members.local import memory
from langchain_specfuse.members.local.memory import parse_limit, share_budget
from langchain_specfuse.members.transformers.member import TransformersMember
from langchain_specfuse.members.transformers.movable import MovableWeights

from . import engines, tiny

SETTINGS = Settings(segment_tokens=4, max_tokens=24, method=Method(exit="never"))
QUESTIONS = ("Why is the sky blue?", "What is the answer? " * 9, "Is 1000 a number?")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints of three architectures."""
    made = {}
    for arch in tiny.THREE:
        made[arch] = tmp_path_factory.mktemp(arch)
        for part in tiny.made(arch, 1):
            part.save_pretrained(made[arch])
    return made


def members(folders, limit=None, dtype="float32"):
    found = [TransformersMember(str(folder), name=arch, dtype=dtype) for arch, folder in folders.items()]
    if limit is not None:
        share_budget(limit, found)
    return found


def device_of(some):
    """The memory of the device that these members share."""
    return some[0].memory_budget.on("cpu")


def texts(members, questions=QUESTIONS, watch=lambda *_: None):
    queries = [Query(f"q{k}", (Turn("user", text),)) for k, text in enumerate(questions)]
    return [tiny.text_of(tiny.answered(members, query, SETTINGS, watch)) for query in queries]


@pytest.fixture(scope="module")
def free(folders):
    """What these members answer with all the memory there is; what all of them take, and what the largest takes."""
    roomy = members(folders, "1GB")
    answers = texts(roomy)
    assert len(set(answers)) > 1 and all(answers)
    each = [one.loaded.weights.movable.bytes + one.loaded.store.bytes_for(memory.LEAST_TOKENS) for one in roomy]
    for one in roomy:
        one.unload()
    return answers, sum(each), max(each)


# --- whole answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5])
def test_same_answers_and_no_more_memory_than_the_budget(folders, free, share):
    answers, wanted, _ = free
    some, most = members(folders, int(share * wanted)), []
    assert texts(some, watch=lambda *_: most.append(sum(device_of(some).held))) == answers
    assert max(most) <= int(share * wanted)
    assert share == 0.75 or (device_of(some).moves > 0) == (share < 1)


def test_same_answers_with_room_for_one_member_at_a_time(folders, free):
    answers, _, largest = free
    some = members(folders, largest + 1)
    assert texts(some) == answers
    assert sum(device_of(some).held) <= largest + 1


def test_weights_that_were_converted_come_back_to_the_bit(folders, free):
    answers = texts(members(folders, dtype="bfloat16"))
    some = members(folders, int(0.6 * free[2]), dtype="bfloat16")
    assert texts(some) == answers and device_of(some).moves > 0


def test_many_questions_at_once_are_all_answered(folders, free):
    answers, wanted, _ = free
    some = members(folders, int(0.6 * wanted))
    ensemble, found = Ensemble(some), {}

    def ask(k):
        query = Query(f"c{k}", (Turn("user", QUESTIONS[k % 3]),))
        found[k] = tiny.text_of(list(ensemble.rounds(query, SETTINGS)))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[k] for k in range(6)] == answers * 2
    assert sum(device_of(some).held) <= int(0.6 * wanted)


@pytest.mark.real
@pytest.mark.long
def test_real_members_answer_the_same_with_half_the_memory():
    question, found = "Why is the sky blue?", []
    some = engines.in_transformers()
    for limit in ("10GB", "1.2GB"):
        found.append(SpecFuseChatModel(members=some, memory_budget=limit, max_tokens=20).invoke(question).text)
        moves = device_of(some).moves
        for one in some:
            on_worker(one, one.unload).result()
    assert found[0] == found[1] != "" and moves > 0


# --- what does not fit ------------------------------------------------------------------------------------------


def test_a_member_that_never_fits_is_refused_before_anything_is_streamed(folders, free):
    llm = SpecFuseChatModel(members=members(folders), memory_budget=free[2] // 2)
    with pytest.raises(UsageError, match=r"needs .* on cpu .* memory_budget gives") as raised:
        next(llm.stream("Why?"))
    assert "give more" in "".join(raised.value.__notes__)


def test_a_budget_that_cannot_be_kept_binds_nobody_afterwards(folders):
    one = members(folders)[0]
    one.probe()
    share_budget("1KB", [one])
    with pytest.raises(UsageError, match="memory_budget gives"):
        texts([one])
    assert one.memory_budget is None and texts([one])


def test_a_text_too_long_for_the_budget_is_a_failure_and_shorter_ones_are_answered(folders):
    (one, *_) = some = members(folders, "1GB")
    one.probe()
    device_of(some).total = one.loaded.weights.movable.bytes + one.loaded.store.bytes_for(memory.LEAST_TOKENS)
    short, long = (Query(name, (Turn("user", "The sky. " * size),)) for name, size in (("short", 2), ("long", 300)))
    replies = one.draft([DraftJob(query, (), 4, 9, Sampling()) for query in (short, long)])
    assert isinstance(replies[1], Failure) and replies[1].kind == "overflow" and "memory_budget=" in replies[1].message
    assert replies[0].text == tiny.member("llama", 1).draft([DraftJob(short, (), 4, 9, Sampling())])[0].text


# --- who shares a budget ----------------------------------------------------------------------------------------


def test_a_member_has_one_budget_until_it_is_unloaded(folders):
    one = members(folders, "1GB")[0]
    share_budget(10**9, [one])  # the same
    with pytest.raises(UsageError, match="has memory_budget='1GB'"):
        share_budget("2GB", [one])
    one.probe()
    device = device_of([one])
    assert device.held[0] > 0
    one.unload()
    assert device.held == (0, 0)
    share_budget("2GB", [one])


def test_a_member_without_a_budget_finds_the_weights_that_another_has_sent_away(folders, free):
    answers, _, largest = free
    some, others = members(folders, largest + 1), members(folders)
    assert texts(some) == texts(others) == answers
    assert others[0].loaded.weights is some[0].loaded.weights


def test_a_member_waits_for_another_at_work_and_gives_up_where_that_hangs(folders, free, monkeypatch):
    monkeypatch.setattr(memory, "PATIENCE_S", 0.2)
    ann, bob = members(folders, free[2] + 1)[:2]
    for one in (ann, bob):
        one.probe()
    busy, leave, seen = threading.Event(), threading.Event(), []
    model = ann.loaded.weights.model
    hook = model.register_forward_pre_hook(lambda *_: (busy.set(), leave.wait(30), None)[2])
    thread = threading.Thread(target=lambda: seen.append(texts([ann], QUESTIONS[:1])))
    thread.start()
    assert busy.wait(30)
    with pytest.raises(MemberError, match=f"{bob.name} waited 0.2 s for memory that {ann.name} holds"):
        bob.draft([DraftJob(tiny.query(), (), 4, 9, Sampling())])
    leave.set()
    thread.join(30)
    hook.remove()
    assert seen and texts([bob], QUESTIONS[:1])


@pytest.mark.parametrize(
    "limit", [0, -1, True, "", "much", "6 apples", "GB", 1.5, {}, {"cpu": "x"}, "1e400GB", [1], {"gpu": 9}, {"CPU": 9}]
)
def test_a_limit_that_is_not_a_number_of_bytes_is_refused(limit):
    with pytest.raises(ValueError, match=r"number of bytes|devices such as"):
        parse_limit(limit)


# --- weights ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"))])  # fmt: skip
def test_weights_come_back_as_they_were(device):
    """Tied ones are tied again, and all of them are ordinary tensors, though members work in inference mode."""
    model, _ = tiny.made("llama", 1)
    model.lm_head.weight = model.model.embed_tokens.weight
    weights = MovableWeights(model.to(device))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert weights.bytes < sum(weight.nbytes for weight in before.values())  # tied weights count once
    for _ in range(2):
        with torch.inference_mode():
            assert weights.offload() and not weights.here
            with weights.in_use():
                assert not weights.offload()  # not while they are used
        after = model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert not any(one.is_inference() for one in (*model.parameters(), *model.buffers()))


def test_weights_that_cannot_be_written_stay_where_they_are(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    member = tiny.member("llama", 1)
    weights = MovableWeights(member.loaded.weights.model)
    with pytest.raises(MemberError, match="cannot be written") as raised:
        weights.offload()
    assert "TMPDIR" in "".join(raised.value.__notes__)
    assert weights.here and texts([member], QUESTIONS[:1])
