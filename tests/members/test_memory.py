"""A budget of memory makes members slower, never wrong: what lies on the device is within it, answers are the same."""

import gc
import threading
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.values import DraftJob, Failure, Query, Sampling, Settings, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members import _allowance
from langchain_specfuse.members._allowance import Allowance
from langchain_specfuse.members._budget import Budget
from langchain_specfuse.members._plan import Need, Short, planned
from langchain_specfuse.members._shelf import Shelf
from langchain_specfuse.members._slab import Slab
from langchain_specfuse.members._stores import Read
from langchain_specfuse.members.transformers import TransformersMember

from . import tiny

ARCHS = ("llama", "gemma3", "qwen3-next")
SETTINGS = Settings(segment_tokens=4, max_tokens=24, exit="never")
QUESTIONS = ("Why is the sky blue?", "What is the answer? " * 9, "Is 1000 a number?")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints of three architectures, and one that is kept in half precision."""
    made = {}
    for arch in ARCHS:
        model, tokenizer = tiny.made(arch, 1)
        made[arch] = tmp_path_factory.mktemp(arch)
        model.save_pretrained(made[arch])
        tokenizer.save_pretrained(made[arch])
    return made


def members(folders, budget=None, dtype="float32"):
    found = [TransformersMember(str(folder), name=arch, dtype=dtype) for arch, folder in folders.items()]
    for one in found:
        if budget is not None:
            one.within(budget)
    return found


def texts(members, questions=QUESTIONS, watch=lambda *_: None):
    queries = [Query(f"q{k}", (Turn("user", text),)) for k, text in enumerate(questions)]
    return [tiny.text_of(tiny.answered(members, query, SETTINGS, watch)) for query in queries]


def wanted(members):
    """Bytes of the weights, and of the least caches."""
    return sum(m._weights.shelf.size for m in members), sum(m._holding.least for m in members)


@pytest.fixture(scope="module")
def free(folders):
    """What these members answer, and what they hold, with all the memory there is."""
    roomy = members(folders, Budget("1GB"))
    answers = texts(roomy)
    assert len(set(answers)) > 1 and all(answers)
    return answers, *wanted(roomy), max(m._weights.shelf.size + m._holding.least for m in roomy)


# --- the plan ---------------------------------------------------------------------------------------------------

SIZES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9), st.booleans()), min_size=1, max_size=6)


@given(st.integers(1, 150), SIZES)
def test_a_plan_is_within_the_budget_whoever_works(total, told):
    weights = {str(k): size for k, (size, _, _) in enumerate(told)}
    needs = {k: Need(f"m{k}", str(k), least) for k, (_, least, _) in enumerate(told)}
    fixed = frozenset(str(k) for k, (_, _, stays) in enumerate(told) if stays)
    held = sum(weights[one] for one in fixed)
    alone = [held + need.least + (need.weights not in fixed) * weights[need.weights] for need in needs.values()]
    if max(alone) > total:
        with pytest.raises(Short):
            planned(total, weights, needs, fixed)
        return
    plan = planned(total, weights, needs, fixed)
    assert fixed <= plan.stay
    for one, need in needs.items():
        on_device = {*plan.stay, need.weights}
        caches = sum(plan.caches.values()) if plan.kept else plan.caches[one]
        assert sum(weights[w] for w in on_device) + caches <= total
        assert plan.caches[one] >= need.least


@given(SIZES)
def test_nobody_moves_where_all_fit(told):
    weights = {str(k): size for k, (size, _, _) in enumerate(told)}
    needs = {k: Need(f"m{k}", str(k), least) for k, (_, least, _) in enumerate(told)}
    total = sum(weights.values()) + sum(need.least for need in needs.values())
    assert planned(total, weights, needs, frozenset()).stay == frozenset(weights)


# --- whole answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5])
def test_answers_are_the_same_and_the_device_holds_no_more_than_it_may(folders, free, share):
    answers, weights, least, _ = free
    budget = Budget(int(share * (weights + least)))
    some = members(folders, budget)
    most = []

    def watch(*_):
        most.append(sum(budget.held["cpu"]))

    assert texts(some, watch=watch) == answers
    assert max(most) <= budget.told
    moved = budget.on("cpu").moves
    assert moved == 0 if share == 1 else moved > 0


def test_with_room_for_one_cache_at_a_time_answers_are_the_same(folders, free):
    answers, _, _, largest = free
    budget = Budget(largest + 1)
    some = members(folders, budget)
    assert texts(some) == answers
    assert sum(budget.held["cpu"]) <= budget.told
    assert not budget.on("cpu")._plan.kept


def test_converted_weights_come_back_to_the_bit(folders):
    budget = Budget("1GB")
    roomy = members(folders, budget, dtype="bfloat16")
    answers = texts(roomy)
    weights, _ = wanted(roomy)
    largest = max(m._weights.shelf.size + m._holding.least for m in roomy)
    tight = Budget(max(largest, int(weights * 0.7)))
    assert texts(members(folders, tight, dtype="bfloat16")) == answers
    assert tight.on("cpu").moves > 0


def test_many_questions_at_once_queue_and_nobody_fails(folders, free):
    answers, weights, least, _ = free
    budget = Budget(int(0.6 * (weights + least)))
    ensemble = Ensemble(members(folders, budget))
    told = {}

    def ask(k):
        rounds = ensemble.rounds(Query(f"c{k}", (Turn("user", QUESTIONS[k % 3]),)), SETTINGS)
        told[k] = tiny.text_of(list(rounds))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [told[k] for k in range(6)] == answers * 2
    assert sum(budget.held["cpu"]) <= budget.told


def test_a_member_that_has_left_has_freed_its_cache_before_it_would_work_again(folders):
    """``forget`` stands in the inbox before the others' next jobs."""
    some = members(folders)
    ensemble = Ensemble(some)
    leaver = some[1]
    draft, score, seen = leaver.draft, some[0].draft, []

    def fails_in_its_second_round(jobs):
        return draft(jobs) if not jobs[0].answer else [Failure("error", "no more")] * len(jobs)

    def looks(jobs):
        if len(jobs[0].answer) >= 2:
            seen.append(("left" in leaver.store.rows, leaver.store.capacity, "left" in leaver._memos))
        return score(jobs)

    leaver.draft, some[0].draft = fails_in_its_second_round, looks
    query = Query("left", (Turn("user", QUESTIONS[0]),))
    told = list(ensemble.rounds(query, Settings(segment_tokens=2, max_tokens=40, max_rounds=4)))
    assert [gone.member for round in told for gone in round.left] == [leaver.name]
    assert seen and set(seen) == {(False, (0, 0), False)}


# --- what does not fit ------------------------------------------------------------------------------------------


def test_a_member_that_never_fits_says_what_it_needs(folders, free):
    _, _, _, largest = free
    some = members(folders, Budget(largest // 2))
    with pytest.raises(UsageError, match=r"needs .* on cpu .* memory_budget gives") as raised:
        [one.probe() for one in some]
    assert "give more" in raised.value.__notes__[0]
    # Given enough, the same member loads.
    refused = next(one for one in some if one._ready is None)
    refused.unload()
    refused.within(Budget("1GB"))
    refused.probe()


def test_one_text_longer_than_its_share_borrows_and_one_too_long_for_all_is_told(folders, free):
    _, weights, least, _ = free
    budget = Budget(weights + least)
    some = members(folders, budget)
    first = some[0]
    for one in some:
        one.probe()
    text = "The sky is blue. " * 40
    long = Query("long", (Turn("user", text),))
    need = len(first._prompt_ids(long.turns)) + 40
    assert first.store.alone(need) > first._holding.least / 2
    job = DraftJob(long, (), 4, 4, Sampling())
    reference = members(folders)[0].draft([job])[0]
    first._holding.allot(first.store.alone(need) // 2)
    first._allowance._plan.caches[id(first._holding)] = first.store.alone(need) // 2
    assert first.draft([job])[0].text == reference.text
    first.forget("long")
    assert first.store.budget <= first.store.alone(need) // 2  # given back after the turn
    first._allowance.total = first._weights.shelf.size + first.store.alone(need) // 2
    reply = first.draft([job])[0]
    assert isinstance(reply, Failure) and reply.kind == "overflow"
    assert "memory_budget=" in reply.message
    # A short one still goes.
    assert texts([first], QUESTIONS[:1])


def test_members_that_nobody_holds_any_more_leave_their_room_to_others(folders):
    budget = Budget("1GB")
    some = members(folders, budget)
    [one.probe() for one in some]
    before = some[0]._allowance._plan.caches[id(some[0]._holding)]
    kept, some = some[0], None
    gc.collect()
    kept.draft([DraftJob(tiny.query(), (), 2, 2, Sampling())])
    assert kept._allowance._plan.caches[id(kept._holding)] > before
    assert budget.held["cpu"][0] == kept._weights.shelf.size


def test_one_member_has_one_budget_until_it_is_unloaded(folders):
    one, first, other = members(folders)[0], Budget("1GB"), Budget("2GB")
    one.within(first)
    one.within(first)
    with pytest.raises(UsageError, match="shares memory_budget='1GB' already"):
        one.within(other)
    one.probe()
    one.unload()
    assert first.held["cpu"] == (0, 0)
    one.within(other)
    one.probe()
    assert other.held["cpu"][0] == one._weights.shelf.size


def test_a_budget_given_to_a_loaded_member_holds_from_the_next_job_on(folders, free):
    answers, weights, least, _ = free
    some = members(folders)
    assert texts(some) == answers
    budget = Budget(int(0.6 * (weights + least)))
    for one in some:
        one.within(budget)
    assert texts(some) == answers
    assert sum(budget.held["cpu"]) <= budget.told


def test_a_member_that_shares_moved_weights_without_a_budget_finds_them(folders, free):
    answers, weights, least, _ = free
    some = members(folders, Budget(int(0.6 * (weights + least))))
    for one in some:
        one.probe()
    others = members(folders)
    assert texts(others) == answers
    assert others[0]._weights is some[0]._weights


def test_devices_may_have_budgets_of_their_own(folders):
    budget = Budget({"cuda": "3GB"})
    assert budget.on("cpu") is None
    assert budget.on("cuda:0").total == 3 * 10**9
    assert budget.on("cuda:1") is None
    (one, *_) = members(folders, budget)
    one.probe()
    assert one._allowance is None


# --- who is at work -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Held:
    """A holding made of numbers."""

    name: str
    size: int
    least: int = 1
    mark: str = ""
    movable: bool = True
    here: bool = False
    cached: int = 0
    shares: list = field(default_factory=list)

    def __post_init__(self):
        self.mark = self.mark or self.name

    def put_away(self):
        self.here = False
        return True

    def allot(self, cache):
        self.cached = min(self.cached, cache)
        self.shares.append(cache)


def test_weights_of_a_member_that_hangs_are_not_taken_from_it(monkeypatch):
    monkeypatch.setattr(_allowance, "PATIENCE_S", 0.05)
    allowance = Allowance("cpu", 10)
    ann, bob = Held("ann", 6), Held("bob", 6)
    ann.put_away = lambda: False  # in use
    allowance.join(ann)
    allowance.join(bob)
    with allowance.turn(ann):
        ann.here = True
        late = pytest.raises(MemberError, match=r"bob waited 0.05 s for memory that ann holds")
        with late, allowance.turn(bob):
            pass
    del ann.put_away
    with allowance.turn(bob):
        assert not ann.here


def test_who_waits_for_memory_goes_on_when_the_other_is_done():
    allowance = Allowance("cpu", 10)
    ann, bob = Held("ann", 6), Held("bob", 6)
    allowance.join(ann)
    allowance.join(bob)
    busy, seen = threading.Event(), []
    ann.put_away = lambda: not busy.is_set() and Held.put_away(ann)

    def work():
        with allowance.turn(bob):
            seen.append(ann.here)

    with allowance.turn(ann):
        ann.here = True
        busy.set()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not seen
        busy.clear()
    thread.join(5)
    assert seen == [False]


def test_weights_that_load_have_their_room_before_they_are_there():
    allowance = Allowance("cpu", 10)
    ann = Held("ann", 6, here=True)
    allowance.join(ann)
    with allowance.loading("bob", None, 6):
        assert not ann.here
    with pytest.raises(UsageError, match="cyd needs 11 bytes"), allowance.loading("cyd", None, 11):
        pass
    ann.movable = False
    with pytest.raises(UsageError, match="bob needs 12 bytes"), allowance.loading("bob", None, 6):
        pass


# --- the shelf ----------------------------------------------------------------------------------------------------


def tensors(model):
    return {name: weight.clone() for name, weight in model.state_dict().items()}


@pytest.mark.parametrize("files", [True, False])
def test_weights_come_back_as_they_were(folders, files):
    model, _ = tiny.made("llama", 1)
    shelf = Shelf(model, tuple(folders["llama"].glob("*.safetensors")) if files else ())
    before = tensors(model)
    for _ in range(2):
        assert shelf.put_away()
        assert sum(weight.nbytes for weight in model.parameters()) == 0
        with shelf.in_use():
            assert not shelf.put_away()  # not while somebody reads them
            after = tensors(model)
        assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert {place.file.startswith(str(folders["llama"])) for place in shelf._places.values()} == {files}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_members_load_and_move_are_tensors_like_any_other(folders, dtype):
    """Members work in inference mode, whose tensors torch lets nobody change later: whoever did would break them."""
    member = TransformersMember(folders["llama"], dtype=dtype, device="cpu")
    job = DraftJob(tiny.query("Why?"), (), 4, 20, Sampling())
    told = member.draft([job])
    model, shelf = member._weights.model, member._weights.shelf
    for moved in (False, True):
        if moved:
            with torch.inference_mode():
                assert shelf.put_away()
            member.forget(job.query.id)
            member.drop_prefixes()
            assert member.draft([job])[0].tokens == told[0].tokens and shelf.moves == 1
        assert not any(one.is_inference() for one in (*model.parameters(), *model.buffers()))
        with torch.no_grad():
            for weight in model.parameters():
                weight.data = weight.data.clone()
        member.forget(job.query.id)
        member.drop_prefixes()
        assert member.draft([job])[0].logprobs == told[0].logprobs


def test_numbers_that_are_not_the_files_are_not_read_from_there(folders):
    model, _ = tiny.made("llama", 1)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    shelf = Shelf(model, tuple(folders["llama"].glob("*.safetensors")))
    before = tensors(model)
    shelf.put_away()
    with shelf.in_use():
        assert torch.equal(model.lm_head.weight, before["lm_head.weight"])


def test_tied_weights_stay_tied_and_are_counted_once():
    model, _ = tiny.made("llama", 1)
    model.lm_head.weight = model.model.embed_tokens.weight
    shelf = Shelf(model)
    assert shelf.size == sum(weight.nbytes for weight in model.parameters())
    shelf.put_away()
    with shelf.in_use():
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_file_that_was_changed_meanwhile_is_not_taken_for_the_weights(tmp_path):
    model, _ = tiny.made("llama", 1)
    model.save_pretrained(tmp_path)
    shelf = Shelf(model, tuple(tmp_path.glob("*.safetensors")))
    shelf.put_away()
    tiny.made("llama", 2)[0].save_pretrained(tmp_path)
    with pytest.raises(MemberError, match="has changed or gone"), shelf.in_use():
        pass


def test_what_was_written_aside_goes_with_the_model():
    model, _ = tiny.made("llama", 1)
    shelf = Shelf(model)
    shelf.put_away()
    from pathlib import Path

    folder = Path(next(iter(shelf._places.values())).file).parent
    assert folder.is_dir()
    del shelf
    gc.collect()
    assert not folder.exists()


def test_a_model_in_memory_is_not_taken_apart():
    member = tiny.member("llama", 1)
    assert not member._weights.shelf.put_away()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_weights_leave_a_gpu_and_come_back():
    model, _ = tiny.made("llama", 1)
    shelf = Shelf(model.to("cuda"))
    before = tensors(model)
    shelf.put_away()
    assert model.get_input_embeddings().weight.device.type == "cuda"
    with shelf.in_use():
        assert all(torch.equal(before[name], weight) for name, weight in tensors(model).items())


# --- caches -------------------------------------------------------------------------------------------------------


def test_a_slab_takes_no_more_than_its_budget_whatever_rows_come_and_go():
    model, _ = tiny.cached("llama", 1)
    read = Read(model)
    store = Slab(read, Slab.windows_of(model.config), None, 10**6)
    with torch.inference_mode():
        store.lead([("first", [5, 6, 7])])
        per = store._bytes_per_token()
        store.fit(5 * 256 * per, 0)
        generator = torch.Generator().manual_seed(7)
        for k in range(60):
            keys = [f"k{int(n)}" for n in torch.randint(0, 9, (2,), generator=generator)]
            sizes = torch.randint(4, 180, (2,), generator=generator).tolist()
            wants = {key: list(range(5, 5 + size)) for key, size in zip(keys, sizes, strict=True)}
            told = dict(zip(wants, store.lead(list(wants.items()), exact=True), strict=True))
            for key, ids in wants.items():
                truth = read(torch.tensor([ids]))[0, -1]
                assert (told[key] - truth).abs().max() < 1e-3
            for _ in range(9):
                store.step(list(wants), [7] * len(wants))
            assert store._bytes() <= store.budget, k
            if k % 5 == 0:
                store.forget(keys[0])
        store.fit(256 * per, 0)
        assert store._bytes() <= 256 * per


def test_a_budget_that_is_too_small_binds_nobody_afterwards(folders):
    one = members(folders)[0]
    one.probe()
    one.within(Budget("1KB"))
    with pytest.raises(UsageError, match="memory_budget gives"):
        texts([one])
    assert one.budget is None
    assert texts([one])
    one.within(Budget("1GB"))
    assert texts([one])


def test_who_waits_for_weights_that_somebody_outside_uses_looks_again():
    allowance = Allowance("cpu", 10)
    ann, bob = Held("ann", 6), Held("bob", 6)
    allowance.join(ann)
    allowance.join(bob)
    ann.here, busy = True, [True, True, False]  # in use by somebody who tells nobody when it is done
    ann.put_away = lambda: not busy.pop(0) and Held.put_away(ann)
    with allowance.turn(bob):
        assert not ann.here
