"""``langchain-specfuse plan``: how much memory do these members need, and where do they go?

Reads the headers of files, or asks the hub for them. It loads no model and no engine.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from ..chat.options import Options
from ..chat.references import arguments_of, names_of
from ..errors import UsageError
from ..members.names import (
    VLLM,
    is_chat_model,
    is_gguf,
    is_server,
    is_vllm,
    refuse_other_kinds,
)
from ..members.planning import (
    CPU_CACHE_BYTES,
    Gpu,
    Placement,
    described_gpus,
    free_memory,
    gpus,
    place,
    place_in_memory,
)
from ..members.sizes import CONVERSATION, Size, size_of
from ..show.terminal import one_line
from .choices import members_of, new_parser

HEAD = ("member", "weights", "cache/1,000 tokens", "where", "memory", "tokens that fit")


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "plan",
        "How much memory do these members need, and where do they go? Reads the headers of their "
        "files, here or on the hub, and loads nothing.",
    )
    group = parser.add_argument_group("members")
    listed = Options.model_fields["members"].description or ""
    group.add_argument(
        "--members",
        nargs="+",
        metavar="M",
        required=True,
        help=listed.replace(", chat models, dicts of arguments, or member objects", ""),
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
    """None: it needs no memory of this machine."""
    note: str = ""
    """Where it is, if it is not placed."""
    on_gpu: bool = False
    is_server: bool = False
    """Whether it runs in a process of its own."""
    shares_with: str | None = None
    """The member whose weights these are."""


def run(arguments: argparse.Namespace, out: TextIO) -> bool:
    """Print the plan. Raises the error that says what is missing after the sizes are printed."""
    machine = described_gpus(arguments.gpus) if arguments.gpus else gpus()
    rows = _rows(members_of(arguments)[0], bool(machine))
    for line in _machine(machine, rows):
        print(line, file=out)
    try:
        placements = _placed(rows, machine)
    except UsageError:
        print("\n".join(_table(rows, {})), file=out)
        raise
    print("\n".join([*_table(rows, placements), *_remarks(rows)]), file=out)
    return True


def _rows(references: Sequence[Any], has_gpu: bool) -> list[_Row]:
    rows: list[_Row] = []
    owners: dict[str, str] = {}
    for reference, name in zip(references, names_of(references), strict=True):
        model = str(arguments_of(reference)["model"])
        if is_server(model):
            rows.append(_Row(name, note="on its server"))
        elif is_chat_model(model):
            rows.append(_Row(name, note="with its provider"))
        elif model in owners:
            rows.append(_Row(name, note=f"with {owners[model]}", shares_with=owners[model]))
        else:
            owners[model] = name
            rows.append(_sized(name, model, has_gpu))
    return rows


def _sized(name: str, model: str, has_gpu: bool) -> _Row:
    if is_gguf(model):
        return _Row(name, size_of(model))
    refuse_other_kinds(model.removeprefix(VLLM))
    if is_vllm(model):
        size = size_of(model.removeprefix(VLLM), dtype="auto")
        return _Row(name, size, on_gpu=has_gpu, is_server=True)
    # transformers computes in float32 on most CPUs.
    return _Row(name, size_of(model, dtype=None if has_gpu else "float32"), on_gpu=has_gpu)


def _placed(rows: Sequence[_Row], machine: Sequence[Gpu]) -> dict[str, Placement]:
    on_gpu = {row.name: row.size for row in rows if row.size and row.on_gpu}
    in_memory = {row.name: row.size for row in rows if row.size and not row.on_gpu}
    placements = place(on_gpu, machine) if on_gpu else []
    if in_memory:
        servers = [row.name for row in rows if row.is_server and not row.on_gpu]
        caches = dict.fromkeys(servers, CPU_CACHE_BYTES)
        placements += place_in_memory(in_memory, free_memory(), caches=caches)
    return {placement.member: placement for placement in placements}


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


def _cells(row: _Row, at: Placement | None) -> tuple[str, ...]:
    name = one_line(row.name)
    if row.size is None:
        return (name, "", "", one_line(row.note), "", "")
    mark = "~" if row.size.is_estimate else ""
    sizes = (
        name,
        mark + _gb(row.size.weight_bytes),
        mark + f"{1000 * row.size.token_bytes() / 1e6:.0f} MB",
    )
    if at is None:
        return (*sizes, "", "", "")
    where = f"GPU{'s' * (len(at.gpus) > 1)} {', '.join(map(str, at.gpus))}" if at.gpus else "memory"
    each = " each" if len(at.gpus) > 1 else ""
    return (*sizes, where, _gb(at.memory_bytes) + each, f"{at.tokens:,}")


def _remarks(rows: Sequence[_Row]) -> list[str]:
    """Remarks on the numbers of the table."""
    remarks = []
    if any(row.size and row.size.is_estimate for row in rows):
        remarks.append("~ estimated, because no file states it")
    if any(row.size is None and row.shares_with is None for row in rows):
        remarks.append("the memory of servers and providers is not counted")
    if any(row.shares_with for row in rows):
        remarks.append("members of one model share its weights; adapters are not counted")
    if any(row.size and row.size.cache_bytes_per_answer for row in rows):
        remarks.append(
            "some layers keep a window or a state: their cache is counted for conversations of "
            f"{CONVERSATION:,} tokens"
        )
    return ["", *remarks] if remarks else []


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
