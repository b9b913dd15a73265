"""Decides which GPUs a set of members gets, and how much memory each member gets there.

It compares the sizes of the models (:mod:`.sizes`) with those of the GPUs. It does not consider
speed, and loads nothing.

A member needs on each of its GPUs, beside its weights and its cache:

- ``WORKING_BYTES`` inside its own share, for activations and CUDA graphs;
- ``CONTEXT_BYTES`` outside of it, for the CUDA context.

All members hold the same conversations. So the rest of a GPU is divided such that every member
there can hold equally many tokens. A member whose tokens take more memory gets more.
"""

from __future__ import annotations

import csv
import logging
import math
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge

from ..errors import UsageError, advised, amount, imported
from .sizes import CONVERSATION, Size, size_of

__all__ = [
    "Gpu",
    "Placement",
    "Size",
    "described_gpus",
    "free_memory",
    "gpus",
    "named",
    "place",
    "place_in_memory",
    "size_of",
]

log = logging.getLogger("langchain_specfuse")

GIB = 2**30
ACTIVATION_BYTES = int(1.26 * GIB)
"""The peak of activations that vLLM measured for Llama-3-8B in its pull request 10511. A smaller
model needs less."""
GRAPH_BYTES = GIB // 2
"""CUDA graphs: vLLM's logs of models with 1B to 30B parameters show 0.3 to 0.5 GiB."""
WORKING_BYTES = ACTIVATION_BYTES + GRAPH_BYTES
CONTEXT_BYTES = GIB // 2
"""The CUDA context of a process and the kernels that it loads. vLLM creates
it before it measures the free memory."""
USABLE = 0.92
"""All members together take at most this part of a GPU, which is vLLM's own default for one."""
CACHE_SHARE = 0.3
"""The cache of a member in this process may take this part of the memory that is free after
loading, or an equal part where there are too many caches for that: see :func:`cache_share`."""
CPU_CACHE_BYTES = 2 * GIB
"""The cache of a vLLM server that has no GPU, unless the user chose another size."""
LEAST_BYTES = 1e6
"""Fewer bytes of memory are a mistake: gigabytes were meant, probably."""
ANSWER_S = 10.0
"""How long ``nvidia-smi`` may take to answer. It may hang if a GPU is lost."""
TRIES = 10_000
"""At most this many ways to place members are tried."""
FIELDS = ("index", "uuid", "memory.total", "memory.free", "mig.mode.current", "name")


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine, or a described one."""

    index: int
    """Its number in ``nvidia-smi``: that of CUDA with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``."""
    total_bytes: int
    free_bytes: int
    name: str

    @property
    def usable_bytes(self) -> int:
        """What members may take together."""
        return min(self.free_bytes, int(USABLE * self.total_bytes))


@dataclass(frozen=True)
class Placement:
    """Where a member runs, and its memory on each of its GPUs, or on the CPU if it has none.

    As arguments of vLLM:

    - ``CUDA_VISIBLE_DEVICES`` is ``gpus``, with ``CUDA_DEVICE_ORDER`` set to ``PCI_BUS_ID``;
    - ``--tensor-parallel-size`` is the number of them;
    - ``--gpu-memory-utilization`` is ``memory_bytes`` divided by the ``total_bytes`` of the largest
      of them. It covers weights, activations and cache, and vLLM measures what is left for the
      cache;
    - ``--kv-cache-memory-bytes`` is ``cache_bytes``, for a cache whose size does not depend on that
      measurement. vLLM then ignores the fraction;
    - ``--max-model-len`` must not exceed ``tokens``, or vLLM refuses to start; -1 lets it choose.
    """

    member: str
    gpus: tuple[int, ...]
    memory_bytes: int
    """The member's share of each GPU: weights, activations and cache."""
    least_bytes: int
    """The part of it without which the member is of no use: the weights, activations, and a cache
    for one conversation of 4,096 tokens."""
    weight_bytes: int
    """The part of the weights on each GPU."""
    cache_bytes: int
    tokens: int
    """How many tokens the cache holds, in conversations of about 4,096 tokens."""


# --- the GPUs -------------------------------------------------------------------------------------


def gpus() -> list[Gpu]:
    """The GPUs of this machine that this process may use, by ``nvidia-smi`` and
    ``$CUDA_VISIBLE_DEVICES``. Empty without NVIDIA's driver."""
    query = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=ANSWER_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("nvidia-smi shows no GPU: %s", error)
        return []
    known: dict[str, Gpu] = {}
    for row in csv.reader(answer.splitlines(), skipinitialspace=True):
        if len(row) != len(FIELDS) or not all(cell.isdigit() for cell in (row[0], *row[2:4])):
            log.warning("nvidia-smi does not report the memory of a GPU: %s", ", ".join(row))
            continue
        index, uuid, total, free, mig, name = row
        if mig == "Enabled":
            log.warning(
                "GPU %s (%s) is divided into parts (MIG), and nvidia-smi shows the memory of the "
                "whole, so no member is planned there",
                index,
                name,
            )
            continue
        known[uuid] = Gpu(int(index), int(total) << 20, int(free) << 20, name)
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if len({gpu.name for gpu in known.values()}) > 1 and re.match(r"\s*\d", chosen or ""):
        _warn_of_order()
    return _visible(known, chosen)


def _warn_of_order() -> None:
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        log.warning(
            "the numbers in $CUDA_VISIBLE_DEVICES are read as those of nvidia-smi, but the GPUs "
            "differ, and CUDA calls the fastest one 0; set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that "
            "other programs read them in the same way"
        )


def _visible(known: Mapping[str, Gpu], chosen: str | None) -> list[Gpu]:
    """The GPUs that ``$CUDA_VISIBLE_DEVICES`` names by number or by the beginning of their UUID.
    Like CUDA, this reads up to the first one that does not exist."""
    if chosen is None:
        return list(known.values())
    visible: list[Gpu] = []
    for text in (part.strip() for part in chosen.split(",")):
        matching = [
            gpu
            for uuid, gpu in known.items()
            if text == str(gpu.index) or (text.startswith("GPU-") and uuid.startswith(text))
        ]
        if len(matching) != 1 or matching[0] in visible:
            break
        visible += matching
    return visible


def described_gpus(text: str) -> list[Gpu]:
    """The GPUs of a machine that is described by their gigabytes.

    >>> [gpu.total_bytes // 10**9 for gpu in described_gpus("80+2x24")]
    [80, 24, 24]
    """
    described: list[Gpu] = []
    for part in text.replace(" ", "").split("+"):
        found = re.fullmatch(r"(?:(\d{1,3})[x*])?(\d{1,6}(?:\.\d+)?)(?:gb)?", part, re.IGNORECASE)
        count = int(found[1] or 1) if found else 0
        size = int(float(found[2]) * 10**9) if found else 0
        if not count or not size:
            error = UsageError(f"GPUs are described by their gigabytes, got {text!r}")
            raise advised(error, "for example '24', '4x24' or '80+24'")
        for _ in range(count):
            described.append(Gpu(len(described), size, size, f"{size / 1e9:g} GB"))
    return described


def named(indexes: Iterable[int]) -> str:
    """These GPUs, as a sentence names them.

    >>> named([7]), named((0, 1))
    ('GPU 7', 'GPUs 0, 1')
    """
    numbers = list(map(str, indexes))
    return f"GPU{'s' * (len(numbers) > 1)} {', '.join(numbers)}"


# --- the members on them --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Member:
    """A member to place."""

    name: str
    size: Size
    count: int
    """The number of its GPUs."""
    pinned: tuple[int, ...] | None
    memory: float | None
    """What the user chose: bytes, or a part of a GPU's memory."""
    cache: int | None = None
    """The bytes of the cache on each GPU, if the user chose them."""
    is_whole: bool = False
    """Whether it runs on one GPU only."""

    def weights(self) -> int:
        return -(-self.size.weight_bytes // self.count)

    def least(self, gpu: Gpu) -> int:
        """The least memory that makes the member useful on this GPU."""
        if self.memory is not None:
            return _chosen_bytes(self.memory, gpu)
        cache = self.cache
        if cache is None:
            cache = self.size.cache_bytes(CONVERSATION, self.count)
        return self.weights() + WORKING_BYTES + cache

    def works_with(self) -> int:
        """The memory without which no engine starts: the weights, and room for one token. A small
        model may work with less than ``WORKING_BYTES``, and the user may know that."""
        return self.weights() + self.size.cache_bytes(1, self.count)

    def token_bytes(self) -> float:
        return self.size.token_bytes(self.count)


def place(
    sizes: Mapping[str, Size],
    gpus: Sequence[Gpu],
    *,
    pinned: Mapping[str, tuple[int, ...]] | None = None,
    memory: Mapping[str, float | int] | None = None,
    tensor_parallel: Mapping[str, int] | None = None,
    caches: Mapping[str, int] | None = None,
    whole: Collection[str] = (),
) -> list[Placement]:
    """Place members of these sizes on these GPUs, in the order of ``sizes``.

    Each member goes to the GPU with the most room, so that members share a GPU only where there are
    fewer GPUs than members, or where a GPU is too small. If that leaves no room for one of them,
    other ways are tried. A member that is too large for every GPU is divided among the smallest
    number of GPUs that holds it: 2, 4, 8 ..., a divisor of its attention heads.

    ``pinned``: the indexes of the GPUs that a member must use. ``memory``: a member's share of each
    of its GPUs, in bytes, or up to 1 as a part of the GPU's memory. ``tensor_parallel``: among how
    many GPUs a member is divided. ``caches``: the bytes of a member's cache on each of its GPUs,
    instead of a share. ``whole``: members that cannot be divided.

    Raises :class:`.UsageError` if there is no room, and says how much is missing.

    >>> sizes = {"a": Size("a", 16 * 10**9, 131_072), "b": Size("b", 15 * 10**9, 57_344)}
    >>> [(at.member, at.gpus) for at in place(sizes, described_gpus("2x24"))]
    [('a', (0,)), ('b', (1,))]
    >>> [(at.member, at.gpus) for at in place(sizes, described_gpus("80"))]
    [('a', (0,)), ('b', (0,))]
    """
    pinned, memory = pinned or {}, memory or {}
    tensor_parallel, caches = tensor_parallel or {}, caches or {}
    for given in (pinned, memory, tensor_parallel, caches, whole):
        for name in given:
            if name not in sizes:
                error = UsageError(f"there is no member {name!r} to place")
                raise advised(error, f"the members are {', '.join(sizes)}")
    by_index = {gpu.index: gpu for gpu in gpus}
    if not by_index:
        raise advised(UsageError("there is no GPU"), "describe one: --gpus 24")
    members = [
        _member(
            name,
            size,
            by_index,
            pinned=pinned.get(name),
            memory=memory.get(name),
            count=tensor_parallel.get(name),
            cache=caches.get(name),
            is_whole=name in whole,
        )
        for name, size in sizes.items()
    ]
    # The largest first; names make the result independent of the order.
    largest = max(by_index.values(), key=lambda gpu: gpu.total_bytes)
    ordered = sorted(
        members,
        key=lambda member: (
            member.pinned is None,
            -member.count,
            -member.least(largest),
            member.name,
        ),
    )
    room = {index: gpu.usable_bytes for index, gpu in by_index.items()}
    chosen = _assigned(ordered, by_index, room, iter(range(TRIES)))
    if chosen is None:
        raise _no_room(ordered, by_index, room)
    tokens = _tokens(ordered, chosen, by_index, room)
    return [_placement(member, chosen[member.name], by_index, tokens) for member in members]


def check_choices(
    name: str, pinned: tuple[int, ...] | None, memory: float | None, count: int | None
) -> None:
    """Refuse what a user chose for a member if it cannot work on any machine. The arguments are
    those of :func:`place`, of one member."""
    if pinned is not None and (not pinned or len(set(pinned)) < len(pinned) or min(pinned) < 0):
        error = UsageError(f"{name} must use at least one GPU, each once, got gpu={list(pinned)}")
        raise advised(error, "name GPUs by their numbers in nvidia-smi: gpu=0 or gpu=[0, 1]")
    if pinned is not None and count not in (None, len(pinned)):
        error = UsageError(
            f"{name} must use {amount(len(pinned), 'GPU')}, but tensor_parallel is {count}"
        )
        raise advised(error, "leave one of the two out")
    if memory is None:
        return
    if not 0 < memory < math.inf:
        error = UsageError(f"the memory of {name} must be above 0, and finite; got {memory}")
        raise advised(error, "bytes, or a part of the GPU such as 0.5")
    if 1 < memory < LEAST_BYTES:
        error = UsageError(f"the memory of {name} is in bytes, and no model fits into {memory:g}")
        raise advised(error, f"for {memory:g} GB, pass memory={memory:g}e9; 0.5 is half of the GPU")


def _member(
    name: str,
    size: Size,
    gpus: Mapping[int, Gpu],
    *,
    pinned: tuple[int, ...] | None,
    memory: float | None,
    count: int | None,
    cache: int | None,
    is_whole: bool,
) -> _Member:
    """Check what the user chose for a member, and choose the number of its GPUs."""
    check_choices(name, pinned, memory, count)
    if cache is not None and memory is not None:
        error = UsageError(f"the memory of {name} and the size of its cache are both given")
        raise advised(error, "leave one of the two out")
    if pinned is not None:
        if not set(pinned) <= gpus.keys():
            error = UsageError(
                f"{name} must use {named(pinned)}, but the machine has {named(gpus)}"
            )
            raise advised(error, "name existing GPUs, each once")
        count = len(pinned)
    if count is not None and (count < 1 or (size.heads or count) % count):
        heads = size.heads or "an unknown number of"
        error = UsageError(f"{name} has {heads} heads, which {amount(count, 'GPU')} cannot share")
        raise advised(error, "choose a divisor")
    if count is not None and count > len(gpus):
        error = UsageError(
            f"{name} needs {amount(count, 'GPU')} (tensor_parallel), but the machine has "
            f"{amount(len(gpus), 'GPU')}"
        )
        raise advised(error, "choose fewer, or a machine with more GPUs")
    member = _Member(name, size, count or 1, pinned, memory, cache, is_whole)
    if count is None and not is_whole:
        member = _smallest(member, gpus)
    token = size.cache_bytes(1, member.count)
    if cache is not None and cache < token:
        error = UsageError(f"the cache of {name} is {cache:,} bytes, but one token needs {token:,}")
        raise advised(error, "choose more, or leave it out")
    return member


def _smallest(member: _Member, gpus: Mapping[int, Gpu]) -> _Member:
    """The member on the smallest number of GPUs that hold it; on one, if no number does."""
    divided = member
    room = {index: gpu.usable_bytes for index, gpu in gpus.items()}
    while divided.count <= len(gpus) and (member.size.heads or divided.count) % divided.count == 0:
        for place in _places(divided, gpus, room):
            if all(divided.least(gpus[index]) >= divided.works_with() for index in place):
                return divided
        divided = replace(divided, count=2 * divided.count)
    return member


def _assigned(
    members: Sequence[_Member],
    gpus: Mapping[int, Gpu],
    room: Mapping[int, int],
    tries: Iterator[int],
) -> dict[str, tuple[int, ...]] | None:
    """The GPUs of each member; None if no way to place all was found. Tries the emptiest GPU
    first."""
    if not members:
        return {}
    member, others = members[0], members[1:]
    for place in _places(member, gpus, room):
        if next(tries, None) is None:
            return None
        left = dict(room)
        for index in place:
            left[index] -= member.least(gpus[index]) + CONTEXT_BYTES
        rest = _assigned(others, gpus, left, tries)
        if rest is not None:
            return {member.name: place, **rest}
    return None


def _places(
    member: _Member, gpus: Mapping[int, Gpu], room: Mapping[int, int]
) -> Iterator[tuple[int, ...]]:
    """The groups of GPUs that have room for the member, those with the most room first. Of GPUs
    that are equal, only the first is tried."""

    def holds(index: int) -> bool:
        return room[index] >= member.least(gpus[index]) + CONTEXT_BYTES

    if member.pinned is not None:
        if all(map(holds, member.pinned)):
            yield member.pinned
        return
    # Parts are equal, and vLLM takes the same fraction of every GPU.
    kinds: dict[int, dict[int, list[int]]] = {}
    for index in sorted(filter(holds, gpus)):
        of_this_size = kinds.setdefault(gpus[index].total_bytes, {})
        of_this_size.setdefault(room[index], []).append(index)
    groups = [
        _groups([alike[left] for left in sorted(alike, reverse=True)], member.count)
        for alike in kinds.values()
    ]
    for group in merge(*groups, key=lambda group: [(-room[index], index) for index in group]):
        yield tuple(sorted(group))


def _groups(alike: Sequence[Sequence[int]], count: int) -> Iterator[list[int]]:
    """The groups of so many GPUs, where each item of ``alike`` lists GPUs of which it does not
    matter which are taken. GPUs that come first are taken first."""
    if count > sum(map(len, alike)):
        return
    if count == 0:
        yield []
        return
    first, others = alike[0], alike[1:]
    for taken in range(min(count, len(first)), -1, -1):
        for group in _groups(others, count - taken):
            yield [*first[:taken], *group]


def _tokens(
    members: Sequence[_Member],
    places: Mapping[str, tuple[int, ...]],
    gpus: Mapping[int, Gpu],
    room: Mapping[int, int],
) -> dict[str, int]:
    """How many tokens each member's cache holds: as many as all others on its GPUs, where the user
    chose none. A GPU that holds the fewest is settled first, because a divided model gets
    equal parts everywhere."""
    left = dict(room)
    open_members: dict[str, _Member] = {}
    tokens: dict[str, int] = {}
    for member in members:
        is_open = member.memory is None and member.cache is None
        for index in places[member.name]:
            fixed = member.weights() + WORKING_BYTES
            if not is_open:
                fixed = member.least(gpus[index])
            left[index] -= fixed + CONTEXT_BYTES
        if is_open:
            open_members[member.name] = member
            continue
        share = min(member.least(gpus[index]) for index in places[member.name])
        tokens[member.name] = int(_cache(member, share) / member.token_bytes())
    while open_members:
        index, level = _tightest(open_members.values(), places, left)
        for name, member in list(open_members.items()):
            if index in places[name]:
                tokens[name] = level
                del open_members[name]
                for used in places[name]:
                    left[used] -= -int(-level * member.token_bytes() // 1)
    return tokens


def _tightest(
    members: Iterable[_Member],
    places: Mapping[str, tuple[int, ...]],
    left: Mapping[int, int],
) -> tuple[int, int]:
    """The GPU on which these members can hold the fewest tokens each, and how many."""
    needed: dict[int, float] = {}
    count: dict[int, int] = {}
    for member in members:
        for index in places[member.name]:
            needed[index] = needed.get(index, 0.0) + member.token_bytes()
            count[index] = count.get(index, 0) + 1
    # A byte per member for rounding up.
    levels = {index: int((left[index] - count[index]) // needed[index]) for index in needed}
    index = min(levels, key=lambda index: (levels[index], index))
    return index, levels[index]


def _cache(member: _Member, share: int) -> int:
    """What a share that the user chose leaves for the cache."""
    if share < member.works_with():
        error = UsageError(
            f"the memory chosen for {member.name} is {_gb(share)}, but it needs more than "
            f"{_gb(member.works_with())}, of which {_gb(member.weights())} are weights"
        )
        raise advised(error, "choose more, or leave it out")
    left = share - member.weights() - WORKING_BYTES
    return max(left, member.size.cache_bytes(1, member.count))


def _placement(
    member: _Member,
    place: tuple[int, ...],
    gpus: Mapping[int, Gpu],
    tokens: Mapping[str, int],
) -> Placement:
    held = tokens[member.name]
    cache = member.cache
    if cache is None:
        cache = int(held * member.token_bytes())
    share = member.weights() + WORKING_BYTES + cache
    if member.memory is not None:
        share = min(_chosen_bytes(member.memory, gpus[index]) for index in place)
        cache = _cache(member, share)
    least = min(share, max(member.least(gpus[index]) for index in place))
    return Placement(member.name, place, share, least, member.weights(), cache, held)


def _chosen_bytes(memory: float, gpu: Gpu) -> int:
    return int(memory * gpu.total_bytes) if memory <= 1 else int(memory)


# --- the memory of the CPU ------------------------------------------------------------------------


def free_memory() -> int:
    """The free memory of this machine, in bytes."""
    psutil = imported("psutil", "the plan of members in memory", "llamacpp")
    return int(psutil.virtual_memory().available)


def cache_share(count: int) -> float:
    """The part of the free memory that each of ``count`` growing caches may take.

    >>> cache_share(1), cache_share(3), cache_share(5)
    (0.3, 0.3, 0.2)
    """
    return min(CACHE_SHARE, 1 / max(count, 1))


def place_in_memory(
    sizes: Mapping[str, Size], free_bytes: int, *, caches: Mapping[str, int] | None = None
) -> list[Placement]:
    """Place members in this machine's memory: their weights side by side, and for each cache
    its share of what is left, as members in this process take it. A cache grows up to its share,
    which must hold one conversation.

    ``caches``: the bytes of caches that have a fixed size.

    >>> place_in_memory({"a": Size("a.gguf", 2 * 10**9, 40_000)}, 8 * 10**9)[0].tokens
    45000
    """
    caches = caches or {}
    fixed = sum(size.weight_bytes for size in sizes.values()) + sum(caches.values())
    part = cache_share(len(sizes) - len(caches))
    needed = needed_in_memory(sizes, caches)
    if needed > free_bytes:
        raise _no_memory(sizes, needed, free_bytes)
    share = int(part * (free_bytes - fixed))
    placements = []
    for name, size in sizes.items():
        weights, cache = size.weight_bytes, caches.get(name, share)
        least = weights + caches.get(name, size.cache_bytes(CONVERSATION))
        tokens = int(cache / size.token_bytes())
        placements.append(Placement(name, (), weights + cache, least, weights, cache, tokens))
    return placements


def needed_in_memory(sizes: Mapping[str, Size], caches: Mapping[str, int]) -> int:
    """How many bytes must be free for these members together: their weights, and so much that each
    share of the caches that grow holds one conversation. ``caches``: those of a fixed size."""
    fixed = sum(size.weight_bytes for size in sizes.values()) + sum(caches.values())
    growing = [size for name, size in sizes.items() if name not in caches]
    largest = max((size.cache_bytes(CONVERSATION) for size in growing), default=0)
    return fixed + math.ceil(largest / cache_share(len(growing)))


def _no_memory(sizes: Mapping[str, Size], needed: int, free_bytes: int) -> UsageError:
    error = UsageError(
        f"there is no room in memory: the weights, and caches that hold {CONVERSATION:,} tokens, "
        f"need {_gb(needed)}, and {_gb(free_bytes)} is free; {_gb(needed - free_bytes)} is missing"
    )
    largest = max(sizes, key=lambda name: sizes[name].weight_bytes)
    if needed - sizes[largest].weight_bytes <= free_bytes and len(sizes) > 1:
        advised(error, f"leave {largest} out: the others fit")
    return advised(error, "choose smaller models, or files with fewer bits (Q4_K_M has about 4)")


# --- no room --------------------------------------------------------------------------------------


def _no_room(
    members: Sequence[_Member], gpus: Mapping[int, Gpu], room: Mapping[int, int]
) -> UsageError:
    """The error for members that do not fit: what is needed, what there is and what would fit."""
    left = dict(room)
    for member in members:
        place = next(_places(member, gpus, left), None)
        if place is None:
            return _refusal(member, members, gpus, left)
        for index in place:
            left[index] -= member.least(gpus[index]) + CONTEXT_BYTES
    raise AssertionError("the members fit one after the other")


def _refusal(
    member: _Member,
    members: Sequence[_Member],
    gpus: Mapping[int, Gpu],
    left: Mapping[int, int],
) -> UsageError:
    candidates = member.pinned or tuple(gpus)
    best = max(candidates, key=lambda index: left[index] - member.least(gpus[index]))
    needed = member.least(gpus[best]) + CONTEXT_BYTES
    taken = gpus[best].usable_bytes - left[best]
    beside = f" beside the {_gb(taken)} of others" if taken else ""
    each = " on each of its GPUs" if member.count > 1 else ""
    room_for = f"room for {CONVERSATION:,} tokens"
    if member.cache is not None:
        room_for = f"a cache of {_gb(member.cache)}"
    error = UsageError(
        f"there is no room for {member.name}: it needs {_gb(needed)}{each} "
        f"({_gb(member.weights())} of weights, {room_for}, and "
        f"{_gb(WORKING_BYTES + CONTEXT_BYTES)} to work), and GPU {best} has {_gb(left[best])} of "
        f"{_gb(gpus[best].total_bytes)} left{beside}; {_gb(needed - left[best])} is missing"
    )
    if member.cache is not None:
        advised(error, f"choose a smaller cache for {member.name}, or leave it out")
    if member.memory is not None:
        advised(error, f"choose less than {_gb(left[best] - CONTEXT_BYTES)} for {member.name}")
    others = [other for other in members if other is not member]
    room = {index: gpu.usable_bytes for index, gpu in gpus.items()}
    if others and _assigned(others, gpus, room, iter(range(TRIES))) is not None:
        advised(error, f"leave {member.name} out: the others fit")
    quantized = member.weights() // 4 + needed - member.weights()
    if member.memory is None and member.size.weight_bytes and quantized <= left[best]:
        advised(error, f"choose {member.name} in 4 bits (AWQ, GPTQ): it needs {_gb(quantized)}")
    if member.is_whole and len(gpus) > 1:
        advised(error, f"{member.name} runs on one GPU; vLLM divides a model among several")
    divided = _divided_to_fit(members, gpus, room)
    if divided is not None:
        advised(
            error,
            f"all fit if {divided.name} is divided among GPUs: tensor_parallel={divided.count}",
        )
    return advised(
        error, "choose smaller models, or a machine with more memory: --gpus describes one"
    )


def _divided_to_fit(
    members: Sequence[_Member], gpus: Mapping[int, Gpu], room: Mapping[int, int]
) -> _Member | None:
    """A member that would have to be divided among more GPUs for all to fit; None if dividing one
    is not enough."""
    tries = iter(range(TRIES))
    for place, member in enumerate(members):
        heads = member.size.heads
        count = 2 * member.count
        is_free = member.pinned is None and member.memory is None and not member.is_whole
        while is_free and count <= len(gpus) and (heads or count) % count == 0:
            divided = replace(member, count=count)
            changed = [divided, *members[:place], *members[place + 1 :]]
            if _assigned(changed, gpus, room, tries) is not None:
                return divided
            count *= 2
    return None


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
