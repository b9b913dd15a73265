"""Members are placed on GPUs so that they fit, and the error says what is missing where they do
not."""

from __future__ import annotations

import itertools
import re
import stat
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.errors import UsageError
from langchain_specfuse.members.planning import (
    CONTEXT_BYTES,
    CONVERSATION,
    WORKING_BYTES,
    Gpu,
    Size,
    described_gpus,
    gpus,
    place,
    place_in_memory,
)

GB = 10**9


def model(weights, token_bytes=131_072, **more):
    return Size("m", int(weights * GB), token_bytes, 131_072, **{"heads": 32, **more})


LLAMA = model(16.06, cache_heads=8)
QWEN = model(15.2, 57_344, heads=28, cache_heads=4)
SMALL = model(2.5, 28_672)
SIZES = st.builds(
    model,
    st.floats(0.1, 60),
    st.integers(0, 800_000),
    heads=st.sampled_from([28, 32, 40, 64]),
    cache_heads=st.sampled_from([1, 4, 8]),
    cache_bytes_per_answer=st.integers(0, 10**8),
)
SETS = st.dictionaries(st.sampled_from("abcdef"), SIZES, min_size=1, max_size=5)
MACHINES = st.lists(st.integers(8, 192), min_size=1, max_size=4).map(
    lambda sizes: described_gpus("+".join(map(str, sizes)))
)


def taken(placements):
    """Return the bytes that are taken of each GPU."""
    used = {}
    for placement in placements:
        for index in placement.gpus:
            used[index] = used.get(index, 0) + placement.memory_bytes + CONTEXT_BYTES
    return used


@given(SETS, MACHINES)
def test_every_member_has_room_or_the_error_names_the_missing_bytes(sizes, machine):
    try:
        placements = place(sizes, machine)
    except UsageError as error:
        missing = re.search(r"there is no room for \w: .*; (\d+\.\d) GB is missing", str(error))
        assert missing and float(missing[1]) >= 0
        return
    assert [placement.member for placement in placements] == list(sizes)
    for index, used in taken(placements).items():
        assert used <= machine[index].usable_bytes
    for at in placements:
        size, count = sizes[at.member], len(at.gpus)
        assert at.weight_bytes >= size.weight_bytes / count
        assert at.memory_bytes >= at.weight_bytes + WORKING_BYTES + at.cache_bytes
        assert at.cache_bytes >= size.cache_bytes(CONVERSATION, count) - 1
        assert at.tokens >= CONVERSATION
        assert size.heads % count == 0


@given(SETS, MACHINES, st.randoms(use_true_random=False))
def test_the_order_of_the_members_does_not_matter(sizes, machine, chance):
    names = list(sizes)
    chance.shuffle(names)
    other = {name: sizes[name] for name in names}
    try:
        first = place(sizes, machine)
    except UsageError:
        with pytest.raises(UsageError):
            place(other, machine)
        return
    assert sorted(first, key=str) == sorted(place(other, machine), key=str)


@given(SETS, MACHINES)
def test_a_set_that_fits_one_way_is_placed(sizes, machine):
    """Compared with all ways to place members that need no more than one GPU."""
    needs = [
        size.weight_bytes + WORKING_BYTES + size.cache_bytes(CONVERSATION) + CONTEXT_BYTES
        for size in sizes.values()
    ]

    def fits(way):
        used = [0] * len(machine)
        for index, need in zip(way, needs, strict=True):
            used[index] += need
        return all(need <= gpu.usable_bytes for need, gpu in zip(used, machine, strict=True))

    ways = itertools.product(range(len(machine)), repeat=len(sizes))
    if any(map(fits, ways)):
        assert all(len(at.gpus) == 1 for at in place(sizes, machine))


@given(st.dictionaries(st.sampled_from("abcd"), SIZES, min_size=2))
def test_members_of_one_gpu_hold_equally_many_tokens(sizes):
    placements = place(sizes, described_gpus("400"))
    assert len({at.tokens for at in placements}) == 1
    # No memory is left that would hold another token of each.
    left = described_gpus("400")[0].usable_bytes - taken(placements)[0]
    assert left <= sum(size.token_bytes() + 3 for size in sizes.values())


def test_each_member_has_a_gpu_of_its_own_where_there_are_enough():
    placements = place({"a": SMALL, "b": SMALL, "c": LLAMA}, described_gpus("4x24"))
    assert len({at.gpus for at in placements}) == 3


def test_a_gpu_is_full_before_members_are_refused():
    """Spreading the small ones would leave no room for them all."""
    sizes = {"a": model(11), "b": model(11), "c": model(7), "d": model(7), "e": model(7)}
    placements = {at.member: at.gpus for at in place(sizes, described_gpus("2x36"))}
    assert placements["a"] == placements["b"] != placements["c"]


@pytest.mark.parametrize(
    ("heads", "machine", "count"), [(32, "2x24", 2), (28, "4x12", 4), (40, "8x8", 8)]
)
def test_a_large_model_is_divided_among_the_fewest_gpus_that_hold_it(heads, machine, count):
    size = model(32 if count < 8 else 35, heads=heads, cache_heads=heads)
    (placement,) = place({"a": size}, described_gpus(machine))
    assert len(placement.gpus) == count
    assert placement.weight_bytes == size.weight_bytes // count


def test_heads_that_cannot_be_divided_are_not():
    with pytest.raises(UsageError, match="there is no room for a"):
        place({"a": model(32, heads=25)}, described_gpus("2x24"))


def test_a_divided_model_takes_equal_gpus():
    (placement,) = place({"a": model(100)}, described_gpus("24+80+24+80"))
    assert placement.gpus == (1, 3)


def test_users_choose_gpus_memory_and_division():
    machine = described_gpus("4x80")
    first, second, third = place(
        {"a": SMALL, "b": SMALL, "c": LLAMA},
        machine,
        pinned={"a": (3,), "b": (3,)},
        memory={"a": 0.25, "b": 30 * GB},
        tensor_parallel={"c": 2},
    )
    assert first.gpus == second.gpus == (3,) and len(third.gpus) == 2
    assert first.memory_bytes == 20 * GB and second.memory_bytes == 30 * GB
    assert first.cache_bytes == 20 * GB - first.weight_bytes - WORKING_BYTES
    assert first.tokens == first.cache_bytes // SMALL.cache_bytes_per_token


def test_a_cache_on_a_gpu_may_have_a_size_of_its_own():
    small, open_cache = place({"a": SMALL, "b": SMALL}, described_gpus("24"), caches={"a": 3 * GB})
    assert small.cache_bytes == 3 * GB and small.tokens == 3 * GB // SMALL.cache_bytes_per_token
    assert small.least_bytes == small.memory_bytes == 5.5 * GB + WORKING_BYTES
    assert open_cache.tokens > small.tokens
    assert sum(taken([small, open_cache]).values()) <= described_gpus("24")[0].usable_bytes


def test_a_chosen_cache_is_that_of_each_gpu():
    (divided,) = place(
        {"a": LLAMA}, described_gpus("2x24"), tensor_parallel={"a": 2}, caches={"a": GB}
    )
    assert divided.cache_bytes == GB
    assert divided.memory_bytes == divided.weight_bytes + WORKING_BYTES + GB


def test_a_chosen_cache_without_room_is_named_in_the_error():
    with pytest.raises(UsageError, match=r"a: it needs 34\.9 GB .*a cache of 30\.0 GB"):
        place({"a": SMALL}, described_gpus("24"), caches={"a": 30 * GB})


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"caches": {"a": 1000}}, "cache of a is 1,000 bytes, but one token needs 131,072"),
        ({"caches": {"a": GB}, "memory": {"a": 20 * GB}}, "both"),
        ({"pinned": {"a": (7,)}}, "a must use GPU 7, but the machine has GPUs 0, 1"),
        ({"pinned": {"a": (0, 0)}}, "each once"),
        ({"pinned": {"a": (0,)}, "tensor_parallel": {"a": 2}}, "1 GPU, but tensor_parallel is 2"),
        (
            {"tensor_parallel": {"a": 8}},
            r"a needs 8 GPUs \(tensor_parallel\), but the machine has 2 GPUs",
        ),
        ({"tensor_parallel": {"a": 3}}, "a has 32 heads, which 3 GPUs cannot share"),
        ({"memory": {"a": -1}}, "must be above 0"),
        ({"memory": {"a": 5 * GB}}, r"chosen for a is 5\.0 GB, but it needs more than 16\.1 GB"),
        ({"memory": {"b": 0.5}}, "there is no member 'b'"),
    ],
)
def test_a_choice_that_cannot_work_is_refused(choice, message):
    with pytest.raises(UsageError) as caught:
        place({"a": LLAMA}, described_gpus("2x24"), **choice)
    assert re.search(message, "\n".join([str(caught.value), *caught.value.__notes__]))


def test_a_user_may_know_that_a_small_model_works_with_little():
    (placement,) = place({"a": model(0.5)}, described_gpus("24"), memory={"a": 1 * GB})
    assert placement.memory_bytes == GB and placement.tokens >= 1


def test_members_in_memory_take_what_members_in_this_process_take():
    first, second = place_in_memory({"a": SMALL, "b": model(0.5, 10_000)}, 13 * GB)
    assert (first.gpus, first.weight_bytes) == ((), 2.5 * GB)
    assert first.cache_bytes == second.cache_bytes == 3 * GB
    assert (first.tokens, second.tokens) == (3 * GB // 28_672, 300_000)
    with pytest.raises(
        UsageError, match=r"3\.\d GB, and 2\.9 GB is free; 0\.\d GB is missing"
    ) as caught:
        place_in_memory({"a": SMALL, "b": model(0.5, 10_000)}, int(2.9 * GB))
    assert any("leave a out" in note for note in caught.value.__notes__)


def test_a_cache_in_memory_may_have_a_size_of_its_own():
    sizes = {"a": SMALL, "b": model(0.5, 10_000)}
    first, second = place_in_memory(sizes, 13 * GB, caches={"a": 2 * GB})
    assert first.cache_bytes == 2 * GB and first.memory_bytes == 4.5 * GB
    assert second.cache_bytes == int(0.3 * 8 * GB)


def test_a_cache_in_memory_that_holds_no_conversation_is_no_room():
    talker = model(1, 1_000_000)  # 4,096 tokens are 4.1 GB, and a cache gets 0.3 of what is left
    with pytest.raises(UsageError, match=r"need 14\.7 GB, and 14\.0 GB is free"):
        place_in_memory({"a": talker}, 14 * GB)
    (placed,) = place_in_memory({"a": talker}, 15 * GB)
    assert placed.least_bytes <= placed.memory_bytes and placed.tokens >= CONVERSATION


def test_what_a_member_needs_is_at_most_what_it_gets():
    sizes = {"a": SMALL, "b": model(0.5, 10_000)}
    placements = [*place_in_memory(sizes, 13 * GB), *place(sizes, described_gpus("24"))]
    assert all(at.weight_bytes < at.least_bytes < at.memory_bytes for at in placements)
    (own,) = place({"a": SMALL}, described_gpus("24"), memory={"a": 8 * GB})
    assert own.least_bytes == own.memory_bytes == 8 * GB


def test_many_members_in_memory_never_get_more_than_there_is():
    placements = place_in_memory(dict.fromkeys("abcdefg", SMALL), 30 * GB)
    assert sum(at.memory_bytes for at in placements) <= 30 * GB
    assert len({at.tokens for at in placements}) == 1


def test_the_error_says_what_would_fit():
    with pytest.raises(UsageError) as caught:
        place({"llama": LLAMA, "qwen": QWEN, "small": SMALL}, described_gpus("24"))
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "there is no room for qwen" in text and "leave qwen out" not in text
    assert "GPU 0 has" in text and "beside the" in text and "--gpus" in text
    with pytest.raises(UsageError) as caught:
        place({"llama": LLAMA, "small": SMALL}, described_gpus("24"))
    assert any("leave small out" in note for note in caught.value.__notes__)
    with pytest.raises(UsageError, match="there is no GPU"):
        place({"llama": LLAMA}, [])


def test_dividing_a_model_is_advised_where_it_is_enough():
    sizes = {"llama": LLAMA, "small": model(7, heads=8), "other": SMALL}
    with pytest.raises(UsageError) as caught:
        place(sizes, described_gpus("24+16"))
    assert not any("tensor_parallel" in note for note in caught.value.__notes__)
    sizes = {name: model(10, heads=8) for name in "abc"}
    with pytest.raises(UsageError) as caught:
        place(sizes, described_gpus("2x24"))
    (advice,) = (note for note in caught.value.__notes__ if "tensor_parallel=2" in note)
    assert "all fit if" in advice
    with pytest.raises(UsageError) as caught:
        place(sizes, described_gpus("2x2.4"))
    assert not any("tensor_parallel" in note for note in caught.value.__notes__)


def test_many_unlike_gpus_are_refused_soon():
    machine = [Gpu(at, 24 * GB, 24 * GB - at, "unlike") for at in range(16)]
    with pytest.raises(UsageError, match="no room"):
        place({f"m{at}": model(8) for at in range(40)}, machine)


# --- the GPUs of a machine ------------------------------------------------------------------------

ANSWER = """\
0, GPU-aaa1, 81559, 81079, Disabled, NVIDIA H100 80GB HBM3
1, GPU-bbb2, 24564, 20000, [N/A], NVIDIA GeForce RTX 4090
2, GPU-ccc3, [N/A], [N/A], [N/A], NVIDIA GB10
"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Return a function that makes this machine's ``nvidia-smi``."""

    def made(body):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!{sys.executable}\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)

    return made


@pytest.mark.parametrize(
    ("visible", "indexes"),
    [
        (None, [0, 1]),
        ("", []),
        ("-1", []),
        ("1,0", [1, 0]),
        ("1", [1]),
        ("GPU-bbb", [1]),
        ("0,9,1", [0]),
        ("0,0", [0]),
        ("MIG-aaa1", []),
    ],
)
def test_gpus_are_those_that_the_process_may_use(visible, indexes, nvidia_smi, monkeypatch):
    nvidia_smi(f"print({ANSWER!r}, end='')")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = gpus()
    assert [gpu.index for gpu in found] == indexes
    if visible is None:
        assert found[0] == Gpu(0, 81559 << 20, 81079 << 20, "NVIDIA H100 80GB HBM3")
        assert found[1].usable_bytes == 20000 << 20


def test_a_gpu_in_parts_is_not_planned_as_a_whole(nvidia_smi, caplog):
    """With MIG, CUDA sees one part of it, and nvidia-smi shows the memory of all."""
    nvidia_smi(f"print({ANSWER.replace('Disabled', 'Enabled')!r}, end='')")
    assert [gpu.index for gpu in gpus()] == [1]
    assert any("GPU 0" in text and "MIG" in text for text in caplog.messages)


@pytest.mark.parametrize(
    ("visible", "order", "is_told"),
    [
        ("1", None, True),
        ("0,1", "FASTEST_FIRST", True),
        ("1", "PCI_BUS_ID", False),
        ("GPU-bbb", None, False),
        ("", None, False),
        (None, None, False),
    ],
)
def test_numbers_that_cuda_may_read_in_another_order_are_told(
    visible, order, is_told, nvidia_smi, monkeypatch, caplog
):
    """Of unlike GPUs, CUDA calls the fastest one 0, unless it is asked for nvidia-smi's order."""
    nvidia_smi(f"print({ANSWER!r}, end='')")
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("CUDA_DEVICE_ORDER", order)):
        if value is not None:
            monkeypatch.setenv(name, value)
    gpus()
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in text for text in caplog.messages) == is_told


@pytest.mark.parametrize("body", ["raise SystemExit(9)", "print('No devices were found')"])
def test_a_machine_whose_driver_fails_has_no_gpus(body, nvidia_smi):
    nvidia_smi(body)
    assert gpus() == []


def test_a_machine_without_the_driver_has_no_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == []


@pytest.mark.parametrize("text", ["24", "24GB", " 24 gb"])
def test_one_gpu_is_described_by_its_gigabytes(text):
    assert described_gpus(text) == [Gpu(0, 24 * GB, 24 * GB, "24 GB")]


@pytest.mark.parametrize("text", ["", "0", "x24", "4x", "24,24", "-1", "0x24", "big"])
def test_a_description_that_says_nothing_is_refused(text):
    with pytest.raises(UsageError, match="described by their gigabytes"):
        described_gpus(text)


@pytest.mark.parametrize("machine", ["64x24", "32x24+32x25"])
def test_many_gpus_are_no_reason_to_try_for_minutes(machine):
    large = model(120, heads=64)
    with pytest.raises(UsageError, match="no room for z"):
        place({**dict.fromkeys("abc", large), "z": model(9000, heads=64)}, described_gpus(machine))


def test_the_emptiest_gpu_is_taken_whatever_its_size():
    sizes = {"a": model(60), "b": model(12)}
    assert [at.gpus for at in place(sizes, described_gpus("24+80"))] == [(1,), (0,)]
    sizes = {"a": model(40), "b": model(12)}
    assert [at.gpus for at in place(sizes, described_gpus("24+80"))] == [(1,), (1,)]


@pytest.mark.parametrize("memory", [float("inf"), float("nan"), 0, -1])
def test_memory_is_a_finite_number(memory):
    with pytest.raises(UsageError, match="above 0"):
        place({"a": SMALL}, described_gpus("24"), memory={"a": memory})
