"""A stream and a whole answer say the same, however the chunks fall."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk

from langchain_specfuse.door.replies import Reply, event_bytes

texts = st.text(st.characters(codec="utf-8"), max_size=12)
words = st.lists(texts, max_size=4)
calls = st.lists(st.tuples(st.text("abc", min_size=1, max_size=5), words), max_size=3)
LAST = AIMessageChunk(
    "",
    response_metadata={"finish_reason": "stop_string", "specfuse": {"exits": [{"member": "a", "reason": "secret"}]}},
    usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
)


def chunks_of(thoughts, said, called):
    yield from (AIMessageChunk("", additional_kwargs={"reasoning_content": thought}) for thought in thoughts)
    yield from map(AIMessageChunk, said)
    for index, (name, arguments) in enumerate(called):
        first = tool_call_chunk(name=name, args="", id=f"call_{index}", index=index)
        rest = [tool_call_chunk(name=None, args=piece, id=None, index=index) for piece in arguments]
        yield from (AIMessageChunk("", tool_call_chunks=[one]) for one in (first, *rest))
    yield LAST


@given(words, words, calls)
def test_the_events_of_a_stream_add_up_to_the_whole(thoughts, said, called):
    streamed, whole = Reply("m", with_usage=True), Reply("m")
    events = []
    for chunk in chunks_of(thoughts, said, called):
        events += streamed.events(chunk)
        whole.read(chunk)
    events += streamed.closing()
    sent = [json.loads(event_bytes(event).removeprefix(b"data: ")) for event in events]
    assert all(event_bytes(event).count(b"\n") == 2 for event in events)
    deltas = [one["choices"][0]["delta"] for one in sent[:-1]]
    message = whole.whole()["choices"][0]["message"]
    for key, parts in (("content", said), ("reasoning_content", thoughts)):
        assert "".join(delta.get(key) or "" for delta in deltas) == (message.get(key) or "") == "".join(parts)
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    for index, (name, arguments) in enumerate(called):
        own = [piece for piece in pieces if piece["index"] == index]
        told = message["tool_calls"][index]
        assert [piece["id"] for piece in own if "id" in piece] == [told["id"]]
        joined = "".join(piece["function"]["arguments"] for piece in own)
        assert (told["function"]["name"], told["function"]["arguments"]) == (name, joined) == (name, "".join(arguments))
    assert sum("role" in delta for delta in deltas) == 1
    assert sent[-1]["usage"] == whole.whole()["usage"]


def test_reasons_of_departures_stay_inside():
    reply = Reply("m")
    reply.read(LAST)
    assert "secret" not in json.dumps(reply.whole())
    assert reply.whole()["choices"][0]["finish_reason"] == "stop"
