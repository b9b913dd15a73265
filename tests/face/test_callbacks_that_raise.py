"""Who listens may fail: the answer is whole all the same, whichever way it was asked for."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler

from langchain_specfuse import AsyncSpecFuseCallbackHandler, SpecFuseCallbackHandler

from .conftest import BLUE, asked

WAYS = ["invoke", "ainvoke", "stream", "astream", "batch", "abatch", "astream_events"]
HOOKS = ["on_chat_model_start", "on_llm_new_token", "on_llm_end", "on_custom_event", "on_llm_error"]


def fails(*_: Any, **__: Any) -> None:
    raise RuntimeError("the listener's own mistake")


async def afails(*_: Any, **__: Any) -> None:
    raise RuntimeError("the listener's own mistake")


def listening(kind: type, hook: Any) -> Any:
    return type("Failing", (kind,), dict.fromkeys(HOOKS, hook))()


def listeners() -> dict[str, Any]:
    events = dict.fromkeys(("on_round", "on_weights", "on_exit"), fails)
    return {
        "plain": listening(BaseCallbackHandler, fails),
        "async": listening(AsyncCallbackHandler, afails),
        "ours": SpecFuseCallbackHandler(**events),
        "ours, async": AsyncSpecFuseCallbackHandler(**dict.fromkeys(events, afails)),
    }


def text_of(told: Any, way: str) -> str:
    if way in ("stream", "astream"):
        return "".join(str(chunk.text) for chunk in told)
    if way == "astream_events":
        return "".join(str(e["data"]["chunk"].text) for e in told if e["event"] == "on_chat_model_stream")
    answers = told if isinstance(told, list) else [told]
    assert len({str(one.text) for one in answers}) == 1
    return str(answers[0].text)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("who", listeners())
async def test_a_listener_that_fails_in_every_hook_changes_nothing(
    ensemble: Any, who: str, way: str, soon: Any
) -> None:
    llm = ensemble()
    told = await asked(llm, way, config={"callbacks": [listeners()[who]]})
    assert text_of(told, way) == BLUE
    assert soon(lambda: not any(member.open_queries for member in llm.members))


@pytest.mark.parametrize("way", WAYS)
async def test_a_listener_that_insists_ends_the_answer_and_nothing_is_held(ensemble: Any, way: str, soon: Any) -> None:
    """``raise_error`` is LangChain's way to say that a failure of this listener is to be everybody's."""
    llm, insistent = ensemble(), SpecFuseCallbackHandler(on_round=fails)
    insistent.raise_error = True
    with pytest.raises(RuntimeError, match="own mistake"):
        await asked(llm, way, config={"callbacks": [insistent]})
    assert soon(lambda: not any(member.open_queries for member in llm.members))
    assert llm.invoke("Why?").text == BLUE
