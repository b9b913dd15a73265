"""Ask questions and record everything that a user, a handler or a tracer gets of the answers."""

from __future__ import annotations

import ast
import asyncio
import functools
import json
import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import message_chunk_to_message

from langchain_specfuse import SpecFuseChatModel
from tests.chat.recording import recorded

FOLDER = Path(__file__).with_name("records")
WIDTH = 100
DIGITS = 6
NEAR = 1e-4
"""Numbers that differ by less than this share count as equal, since processors round differently."""
TIMES = {"seconds", "began", "time", "total_seconds"}
IDS = {"id", "run_id", "call_id", "tool_call_id", "mark"}
"""Fields with an id of a run, a call or a model in memory."""
LANGCHAIN_METADATA = {"revision_id", "LANGSMITH_PROJECT", "LANGSMITH_TRACING", "lc_versions"}
"""Run metadata that depends on the installed LangChain and on environment variables."""


def path_of(name: str) -> Path:
    """The file with the record of this scenario."""
    return FOLDER / f"{name}.json"


# --- asking ---------------------------------------------------------------------------------------


class Listener(BaseCallbackHandler):
    """Collects the custom events of an answer."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []
        self.others: list[dict[str, Any]] = []
        self.parameters: dict[str, Any] = {}

    def on_chat_model_start(self, *args: Any, invocation_params: Any = None, **kwargs: Any) -> None:
        self.parameters = dict(invocation_params or {})

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == "specfuse_round":
            self.rounds.append(data)
        else:
            self.others.append({"event": name, **data})


def asked(llm: SpecFuseChatModel, question: Any, **call: Any) -> dict[str, Any]:
    """The message and the events of one answer."""
    listener = Listener()
    record: dict[str, Any] = {}
    try:
        message = llm.invoke(question, {"callbacks": [listener]}, **call)
    except Exception as error:
        record["error"] = described_error(error)
    else:
        record["message"] = described_message(message)
    record |= described_events(listener)
    return record


def traced(llm: SpecFuseChatModel, question: Any, **call: Any) -> list[dict[str, Any]]:
    """The tree of runs that LangSmith receives of one answer."""
    with recorded() as (tracer, endpoint):
        try:
            llm.invoke(question, {"callbacks": [tracer], "metadata": {"thread_id": "t1"}}, **call)
        except Exception:
            pass  # the runs contain the error
    runs = list(endpoint.runs.values())
    return [described_run(run, runs) for run in runs if not run.get("parent_run_id")]


def streamed(llm: SpecFuseChatModel, question: Any, **call: Any) -> dict[str, Any]:
    """The chunks of one stream, and the message that they make."""
    chunks: list[Any] = []
    try:
        chunks.extend(llm.stream(question, **call))
    except Exception as error:
        return {"chunks": [shown_chunk(chunk) for chunk in chunks], "error": described_error(error)}
    message = message_chunk_to_message(functools.reduce(operator.add, chunks))
    return {
        "chunks": [shown_chunk(chunk) for chunk in chunks],
        "message": described_message(message),
    }


def shown_chunk(chunk: Any) -> Any:
    """The text or the pieces of calls, and which metadata came with them."""
    also = [name for name in ("usage_metadata", "response_metadata") if getattr(chunk, name)]
    return [chunk.content, *(chunk.tool_call_chunks or ()), *also]


def events_in_order(llm: SpecFuseChatModel, question: Any, **call: Any) -> list[str]:
    """One line for each event of ``astream_events(version="v2")``."""

    async def collect() -> list[str]:
        events = llm.astream_events(question, version="v2", **call)
        return [event_line(event) async for event in events]

    return asyncio.run(collect())


def event_line(event: Mapping[str, Any]) -> str:
    data = event["data"]
    if event["event"] == "on_custom_event":
        return f"on_custom_event {event['name']} round={data['round']}"
    if event["event"] == "on_chat_model_stream":
        return f"on_chat_model_stream {data['chunk'].content!r}"
    return str(event["event"])


def identity(llm: SpecFuseChatModel, **call: Any) -> dict[str, Any]:
    """The parameters in cache keys and traces."""
    cache_key = plain(dict(ast.literal_eval(llm._get_llm_string(stop=None, **call))))
    listener = Listener()
    llm.invoke("Which?", {"callbacks": [listener]}, **call)
    record = {
        "identifying_params": plain(llm._identifying_params),
        "llm_string": cache_key,
        "invocation_params": plain(listener.parameters),
    }
    for name in ("llm_string", "invocation_params"):
        record[f"also in {name}"] = beside(record.pop(name), record["identifying_params"])
    return record


def beside(parameters: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The parameters that the others lack or have with another value; MISSING: the others' own."""
    missing = dict.fromkeys(others.keys() - parameters.keys(), "MISSING")
    return missing | {
        name: value
        for name, value in parameters.items()
        if name not in others or others[name] != value
    }


# --- describing -----------------------------------------------------------------------------------


def described_message(message: Any) -> dict[str, Any]:
    described = {
        "content": message.content,
        "tool_calls": message.tool_calls,
        "invalid_tool_calls": message.invalid_tool_calls,
        "additional_kwargs": message.additional_kwargs,
        "usage_metadata": message.usage_metadata,
        "response_metadata": message.response_metadata,
    }
    return without_empty(described)


def described_error(error: BaseException) -> dict[str, Any]:
    return {
        "classes": [kind.__name__ for kind in type(error).__mro__ if kind is not object],
        "message": str(error),
    }


def described_events(listener: Listener) -> dict[str, Any]:
    """The rounds without empty fields; the names of all fields once."""
    fields = {tuple(sorted(data)) for data in listener.rounds}
    record: dict[str, Any] = {"rounds": [without_empty(data) for data in listener.rounds]}
    if listener.others:
        record["other_events"] = listener.others
    if fields:
        (names,) = fields
        record["round_fields"] = " ".join(names)
    return record


def described_run(
    run: Mapping[str, Any],
    runs: Iterable[Mapping[str, Any]],
    options: Collection[str] = (),
) -> dict[str, Any]:
    """The run with those below it. LangChain copies the call's ``options`` to all of them."""
    extra = run.get("extra") or {}
    options = {*options, *(extra.get("invocation_params") or ())}
    children = [other for other in runs if other.get("parent_run_id") == run["id"]]
    children.sort(key=place_of)
    outputs = run.get("outputs")
    if run["run_type"] == "llm":
        outputs = llm_outputs(outputs or {})
    described = {
        "name": run["name"],
        "run_type": run["run_type"],
        "tags": run.get("tags"),
        "inputs": inputs_of(run),
        "outputs": outputs,
        "error": first_line(run.get("error")),
        "events": [event for event in run.get("events") or () if event["name"] == "specfuse_exit"],
        "metadata": own_metadata(extra, options),
        "children": [described_run(child, runs, options) for child in children],
    }
    return without_empty(described)


def place_of(run: Mapping[str, Any]) -> tuple[Any, ...]:
    """The place among its siblings: by round, then by name, since members work at the same time."""
    kind, _, name = run["name"].partition(" ")
    number = int(name) if kind == "round" else 0
    return number, kind, name, run["dotted_order"]


def llm_outputs(outputs: Mapping[str, Any]) -> list[Any]:
    """The texts alone: the form around them is LangChain's own."""
    return [generation["text"] for row in outputs.get("generations", ()) for generation in row]


def inputs_of(run: Mapping[str, Any]) -> Any:
    inputs = run.get("inputs") or {}
    if run["run_type"] != "llm":
        return inputs
    return [message["kwargs"]["content"] for row in inputs["messages"] for message in row]


def own_metadata(extra: Mapping[str, Any], options: Collection[str]) -> dict[str, Any]:
    """Without the parameters of the call, which LangChain copies there."""
    leaving = LANGCHAIN_METADATA.union(options)
    metadata = extra.get("metadata") or {}
    return {key: value for key, value in metadata.items() if key not in leaving}


def first_line(error: str | None) -> str | None:
    if not error:
        return None
    return error.splitlines()[0]


def without_empty(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value not in (None, "", [], {}, (), False)}


# --- plain JSON -----------------------------------------------------------------------------------

LEAVING = {
    "method": {"feedback", "late"},
    "members": {
        "engine",
        "repetition_penalty",
        "revision",
        "seed",
        "threads",
        "trust_remote_code",
    },
}
"""Options that go: they are left out of what describes a method or a member."""
LEAVING["verifiers"] = LEAVING["members"]


def plain(value: Any, key: str = "") -> Any:
    """The value as JSON in which nothing differs from run to run."""
    if key in TIMES and isinstance(value, int | float | str):
        return "TIME"
    if key in TIMES and isinstance(value, Mapping):
        return dict.fromkeys(sorted(value), "TIME")
    if key in IDS and isinstance(value, str) and value:
        return "ID"
    if isinstance(value, Mapping):
        named = {str(name): plain(item, str(name)) for name, item in value.items()}
        leaving = LEAVING.get(key, set())
        return {name: item for name, item in sorted(named.items()) if name not in leaving}
    if isinstance(value, list | tuple):
        return [plain(item, key) for item in value]
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        return rounded(value)
    return without_addresses(str(value))


def shortened(value: Any) -> Any:
    """A request's body: lists of token ids and texts by their length."""
    if isinstance(value, Mapping):
        return {name: shortened(item) for name, item in value.items()}
    if isinstance(value, str) and len(value) > 60:
        return f"{len(value)} characters"
    if isinstance(value, list) and len(value) > 3 and all(isinstance(item, int) for item in value):
        return f"{len(value)} tokens"
    if isinstance(value, list):
        return [shortened(item) for item in value]
    return value


def rounded(value: float) -> float | str:
    if not math.isfinite(value):
        return str(value)
    return float(f"{value:.{DIGITS}g}")


def without_addresses(text: str) -> str:
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)
    text = re.sub(r"\b0x[0-9a-f]{6,}", "0xADDRESS", text)
    return re.sub(r"\bcall_[0-9a-zA-Z]{8,}", "ID", text)


def written(value: Any) -> str:
    """The value as JSON with a line for everything that fits into one."""
    return "\n".join(lines_of(plain(value))) + "\n"


def lines_of(value: Any, indent: str = "", before: str = "", after: str = "") -> list[str]:
    line = f"{indent}{before}{json.dumps(value, ensure_ascii=False)}{after}"
    if len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return [line]
    if isinstance(value, dict):
        items: Sequence[tuple[str, Any]] = [
            (f"{json.dumps(key, ensure_ascii=False)}: ", item) for key, item in value.items()
        ]
        first, last = "{", "}"
    else:
        items = [("", item) for item in value]
        first, last = "[", "]"
    lines = [f"{indent}{before}{first}"]
    for number, (name, item) in enumerate(items, start=1):
        comma = "," if number < len(items) else ""
        lines += lines_of(item, indent + "  ", name, comma)
    return [*lines, f"{indent}{last}{after}"]


def with_recorded_numbers(actual: Any, expected: Any) -> Any:
    """``found`` with the recorded numbers in the places where they are nearly equal."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        return {key: with_recorded_numbers(item, expected.get(key)) for key, item in actual.items()}
    if isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        return [with_recorded_numbers(*pair) for pair in zip(actual, expected, strict=True)]
    if isinstance(actual, float) and isinstance(expected, float):
        near = math.isclose(actual, expected, rel_tol=NEAR, abs_tol=1e-6)
        return expected if near else actual
    return actual
