"""``langchain-specfuse plan``: how much memory do these members need, and where do they go?

Reads the headers of files, or asks the hub for them. It loads no model and no engine.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, TextIO

from ..chat.references import arguments_of, names_of
from ..errors import MemberError, SpecFuseError, UsageError, advised, amount
from ..members.hub import is_hub_name
from ..members.names import (
    VLLM,
    is_chat_model,
    is_gguf,
    is_server,
    is_vllm,
    refuse_mistaken,
    refuse_mistaken_adapter,
)
from ..members.planning import (
    Gpu,
    Placement,
    described_gpus,
    free_memory,
    gpus,
    named,
    needed_in_memory,
    place,
    place_in_memory,
)
from ..members.server.vllm_source import (
    VllmSource,
    cache_bytes,
    chosen_length,
    chosen_places,
    refuse_gpu,
    source_of,
)
from ..members.server.vllm_source import size_of as size_on_vllm
from ..members.sizes import CONVERSATION, Size, size_of
from ..show.terminal import one_line
from .choices import members_help, members_of, new_parser

HEAD = (
    "member",
    "weights",
    "cache/1,000 tokens",
    "where",
    "needs",
    "takes at most",
    "tokens that fit",
)
CACHE_TYPES = {"q8_0": 34 / 64, "q4_0": 18 / 64}
"""``cache_type`` of a ``.gguf`` member -> the size of its cache, compared with 16 bits."""


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "plan",
        "How much memory do these members need, and where do they go? Reads the headers of their "
        "files, here or on the hub, and loads nothing.",
    )
    group = parser.add_argument_group("members")
    group.add_argument(
        "--members", nargs="+", metavar="M", required=True, help=members_help("members")
    )
    group.add_argument(
        "--gpus",
        metavar="GB",
        help="a machine's GPUs by their gigabytes: 24, 4x24 or 80+24 (default: this machine's)",
    )
    parser.set_defaults(verifiers=None, lead="auto")
    return parser


@dataclass(frozen=True)
class _Row:
    """A member of the table."""

    name: str
    size: Size | None = None
    """None: it needs no memory of this machine, or it is unknown."""
    note: str = ""
    """Where it is, if it is not placed."""
    on_gpu: bool = False
    device: str | None = None
    """The device of torch that the user chose for it."""
    is_whole: bool = False
    """Whether it runs on one GPU only."""
    server: VllmSource | None = None
    """What its server is started with, if this process starts one for it."""
    shares_with: str | None = None
    """The member whose weights these are."""
    has_adapter: bool = False


def run(arguments: argparse.Namespace, out: TextIO) -> bool:
    """Print the plan. Raises the error that says what is missing after the sizes are printed."""
    machine = described_gpus(arguments.gpus) if arguments.gpus else gpus()
    rows, errors = _rows(members_of(arguments)[0], bool(machine))
    if not errors:
        for line in _machine(machine, rows):
            print(line, file=out)
    try:
        if errors:
            raise _joined(errors)
        placements = _placed(rows, machine)
    except SpecFuseError:
        if any(row.size for row in rows):
            print("\n".join(_table(rows, {})), file=out)
        raise
    table = [*_table(rows, placements), *_together(rows, placements)]
    print("\n".join([*table, *_remarks(rows, placements)]), file=out)
    return True


def _joined(errors: Sequence[SpecFuseError]) -> SpecFuseError:
    """The first error, with the others as notes."""
    first, *others = errors
    for other in others:
        first.add_note("\n".join([f"also: {other}", *getattr(other, "__notes__", ())]))
    return first


def _rows(references: Sequence[Any], has_gpu: bool) -> tuple[list[_Row], list[SpecFuseError]]:
    """The rows of these members, and the errors of those whose size is unknown."""
    rows: list[_Row] = []
    errors: list[SpecFuseError] = []
    owners: dict[Any, str] = {}
    for reference, name in zip(references, names_of(references), strict=True):
        try:
            rows.append(_row(name, arguments_of(reference), owners, has_gpu))
        except SpecFuseError as error:
            errors.append(error)
            rows.append(_Row(name, note="not known"))
    return rows, errors


def _row(name: str, arguments: Mapping[str, Any], owners: dict[Any, str], has_gpu: bool) -> _Row:
    """The row of one member. ``owners``: weights -> the first member that has them."""
    model = str(arguments["model"])
    if is_server(model):
        return _Row(name, note="on its server")
    if is_chat_model(model):
        return _Row(name, note="with its provider")
    adapter = arguments.get("adapter")
    if adapter is not None:
        _refuse_missing(str(adapter), model, name)
    row, weights = _sized(name, model, arguments, has_gpu)
    row = replace(row, has_adapter=adapter is not None)
    owner = owners.setdefault(weights, name)
    if owner == name:
        return row
    return replace(row, size=None, note=f"with {owner}", shares_with=owner)


def _refuse_missing(adapter: str, model: str, name: str) -> None:
    """Refuse an adapter that does not exist on this machine. One on the hub is not looked up."""
    if not is_gguf(model):
        refuse_mistaken_adapter(adapter, name)
    elif not is_hub_name(adapter) and not Path(adapter).expanduser().exists():
        missing = MemberError(f"{adapter} does not exist", member=name, kind="not_found")
        raise advised(missing, "name a LoRA as a .gguf file")


def _sized(
    name: str, model: str, arguments: Mapping[str, Any], has_gpu: bool
) -> tuple[_Row, Hashable]:
    """The row of a member, and a key that all members with the same weights have."""
    if is_gguf(model):
        size, kept = size_of(model), str(arguments.get("cache_type"))
        layers = str(arguments.get("n_gpu_layers"))
        return _Row(name, _with_cache(size, kept)), (model, layers, kept)
    if is_vllm(model):
        names = signature(source_of).parameters
        own = {key: value for key, value in arguments.items() if key in names}
        source = source_of(**{**own, "model": model.removeprefix(VLLM)})
        refuse_mistaken(model, name)
        return _Row(name, size_on_vllm(source), on_gpu=has_gpu, server=source), source
    refuse_mistaken(model, name)
    on_gpu = has_gpu and arguments.get("device") != "cpu"
    dtype = arguments.get("dtype", "auto")
    if dtype == "auto":
        # transformers computes in float32 on most CPUs.
        dtype = None if on_gpu else "float32"
    chosen = arguments.get("model_kwargs") or {}
    loaded = json.dumps([dtype, arguments.get("device"), chosen])
    size = size_of(model, dtype=dtype, revision=chosen.get("revision"))
    row = _Row(
        name,
        size,
        on_gpu=on_gpu,
        device=arguments.get("device"),
        is_whole="device_map" not in chosen,  # as transformers loads it
    )
    return row, (model, loaded)


def _with_cache(size: Size, kept: str) -> Size:
    """The size of a ``.gguf`` file whose cache is kept in this type."""
    part = CACHE_TYPES.get(kept, 1.0)
    return replace(
        size,
        cache_bytes_per_token=math.ceil(part * size.cache_bytes_per_token),
        cache_bytes_per_answer=math.ceil(part * size.cache_bytes_per_answer),
    )


def _placed(rows: Sequence[_Row], machine: Sequence[Gpu]) -> dict[str, Placement]:
    on_gpu = {row.name: row.size for row in rows if row.size and row.on_gpu}
    in_memory = {row.name: row.size for row in rows if row.size and not row.on_gpu}
    sources = {row.name: row.server for row in rows if row.size and row.server}
    placements = []
    if on_gpu:
        chosen = chosen_places(sources)
        for row in rows:
            index = _chosen_gpu(row, machine)
            if index is not None:
                chosen["pinned"][row.name] = (index,)
        whole = [row.name for row in rows if row.name in on_gpu and row.is_whole]
        placements += place(on_gpu, machine, whole=whole, **chosen)
    if in_memory:
        for name, source in sources.items():
            if name in in_memory:
                refuse_gpu(source)
        placements += place_in_memory(in_memory, free_memory(), caches=_fixed_caches(rows))
    return {placement.member: placement for placement in placements}


def _chosen_gpu(row: _Row, machine: Sequence[Gpu]) -> int | None:
    """The GPU that the user chose by its name in torch, which numbers those that it may use."""
    device = re.fullmatch(r"cuda(?::(\d+))?", row.device or "")
    if row.size is None or not row.on_gpu or device is None:
        return None
    number = int(device[1] or 0)
    if number >= len(machine):
        error = UsageError(
            f"{row.name} must use device={row.device!r}, but there are only "
            f"{amount(len(machine), 'GPU')}"
        )
        raise advised(error, "leave device out to have a place chosen; the first GPU is 'cuda:0'")
    return machine[number].index


def _fixed_caches(rows: Sequence[_Row]) -> dict[str, int]:
    """The caches in memory whose size does not depend on what is free: those of servers."""
    servers = [row for row in rows if row.size and row.server and not row.on_gpu]
    return {row.name: cache_bytes(row.server) for row in servers if row.server}


# --- the text -------------------------------------------------------------------------------------


def _machine(machine: Sequence[Gpu], rows: Sequence[_Row]) -> list[str]:
    """The GPUs and the memory that members are placed in."""
    lines = []
    if any(row.on_gpu for row in rows):
        lines += [f"GPU {gpu.index}: {gpu.name}, {_gb(gpu.usable_bytes)} usable" for gpu in machine]
    if any(row.size and not row.on_gpu for row in rows):
        lines.append(f"memory: {_gb(free_memory())} free")
    return [*map(one_line, lines), ""] if lines else []


def _table(rows: Sequence[_Row], placements: Mapping[str, Placement]) -> list[str]:
    cells = [HEAD, *(_cells(row, placements.get(row.name)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [
            text.ljust(width) if column in (0, 3) else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _together(rows: Sequence[_Row], placements: Mapping[str, Placement]) -> list[str]:
    """A line about what all members in memory need, if they are several."""
    sizes = {row.name: row.size for row in rows if row.size and not row.on_gpu}
    if len(sizes) < 2:
        return []
    needed = needed_in_memory(sizes, _fixed_caches(rows))
    most = sum(placements[name].memory_bytes for name in sizes)
    return [
        "",
        f"together in memory: {_gb(needed)} must be free; the members take at most {_gb(most)}",
    ]


def _cells(row: _Row, at: Placement | None) -> tuple[str, ...]:
    name = one_line(row.name)
    if row.size is None:
        return (name, "", "", one_line(row.note), "", "", "")
    mark = "~" if row.size.is_estimate else ""
    sizes = (
        name,
        mark + _gb(row.size.weight_bytes),
        mark + f"{1000 * row.size.token_bytes() / 1e6:.0f} MB",
    )
    if at is None:
        return (*sizes, "", "", "", "")
    where = named(at.gpus) if at.gpus else "memory"
    each = " each" if len(at.gpus) > 1 else ""
    amounts = (_gb(amount) + each for amount in (at.least_bytes, at.memory_bytes))
    return (*sizes, where, *amounts, f"{at.tokens:,}")


def _remarks(rows: Sequence[_Row], placements: Mapping[str, Placement]) -> list[str]:
    """Remarks on the numbers of the table."""
    remarks = _too_long(rows, placements)
    remarks += [
        one_line(f"{row.name} means the file {row.size.file}")
        for row in rows
        if row.size and row.size.file
    ]
    if any(row.size and row.size.is_estimate for row in rows):
        remarks.append("~ estimated, because no file states it")
    if any(row.size is None and row.shares_with is None for row in rows):
        remarks.append("the memory of servers and providers is not counted")
    if any(row.shares_with for row in rows):
        remarks.append("members of one model share its weights")
    if any(row.has_adapter for row in rows):
        remarks.append("adapters are not counted")
    if any(row.size for row in rows):
        remarks.append(f"needs: with a cache for one conversation of {CONVERSATION:,} tokens")
    if any(row.size and row.size.cache_bytes_per_answer for row in rows):
        remarks.append(
            "some layers keep a window or a state: their cache is counted for conversations of "
            f"{CONVERSATION:,} tokens"
        )
    return ["", *remarks] if remarks else []


def _too_long(rows: Sequence[_Row], placements: Mapping[str, Placement]) -> list[str]:
    """Remarks on servers that would not start, because their contexts are longer than their
    caches."""
    remarks = []
    for row in rows:
        at, length = placements.get(row.name), chosen_length(row.server) if row.server else None
        if at is not None and length is not None and length > at.tokens:
            remarks.append(
                one_line(
                    f"{row.name}: vLLM would not start with max_model_len {length:,}, because only "
                    f"{at.tokens:,} tokens fit; lower max_model_len, or give the member more memory"
                )
            )
    return remarks


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
