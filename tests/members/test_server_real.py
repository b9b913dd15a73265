"""Members on real engines: the same scores as the same weights in this process, and answers that survive their deaths.

``make test-serving`` runs these; without an engine they are skipped, and say what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("httpx")

from langchain_specfuse import SpecFuseChatModel
from langchain_specfuse.core.member import Member
from langchain_specfuse.core.values import Candidate, Draft, DraftJob, Sampling, Scored, ScoreJob, Segment, Settings
from langchain_specfuse.members.server import ServerMember
from langchain_specfuse.members.transformers import TransformersMember

from . import engines, tiny

pytestmark = [pytest.mark.serving, pytest.mark.slow]
TOLERANCE = {"llama.cpp": 0.15, "vllm": 0.01}
"""Of a mean log-probability: llama.cpp computes with quantized weights, vLLM with the same float32 ones."""
ANSWER = (Segment("The sky looks blue"), Segment(" because the air"))
OBJECT = {"type": "json_object"}
CANDIDATES = tuple(
    Candidate(text, ended, ("x",))
    for text, ended in (
        (" scatters blue light more than red.", True),
        (" is made of blue paint", False),
        (" 天空", False),
    )
)


@pytest.fixture(scope="module", params=["llama.cpp", "vllm"])
def engine(request: pytest.FixtureRequest, engine_for: Callable[[str], engines.Engine]) -> engines.Engine:
    return engine_for(request.param)


@pytest.fixture(params=[True, False], ids=["local tokenizer", "the server's tokenizer"])
def member(request: pytest.FixtureRequest, engine: engines.Engine) -> Iterator[ServerMember]:
    tokenizer = engines.folder() if request.param else None
    one = ServerMember(engine.url, engines.MODEL, name="served", tokenizer=tokenizer, retries=1)
    yield one
    one.unload()


@pytest.fixture(scope="module")
def here() -> TransformersMember:
    one = TransformersMember(str(engines.folder()), name="here", dtype="float32")
    one.probe()
    return one


def test_it_finds_out_that_it_can_score(member: Member, engine: engines.Engine) -> None:
    probe = member.probe()
    assert probe.scores, probe.detail
    assert ("token grammar" if engine.engine == "llama.cpp" else "probes") in probe.detail
    assert probe.max_context and probe.max_context >= 2048


def test_its_scores_are_those_of_the_same_weights_here(
    member: Member, here: TransformersMember, engine: engines.Engine
) -> None:
    job = ScoreJob(tiny.query(id="q"), ANSWER, CANDIDATES)
    member.probe()
    there, told = tiny.reply_of(member, job), tiny.reply_of(here, job)
    assert isinstance(there, Scored) and isinstance(told, Scored)
    for one, other in zip(there.logprobs, told.logprobs, strict=True):
        assert len(one) == len(other)
        assert sum(one) / len(one) == pytest.approx(sum(other) / len(other), abs=TOLERANCE[engine.engine])


def test_its_draft_goes_on_and_its_numbers_are_its_scores(member: Member, engine: engines.Engine) -> None:
    member.probe()
    draft = tiny.reply_of(member, DraftJob(tiny.query(id="q"), ANSWER, 10, 64, Sampling()))
    assert isinstance(draft, Draft) and draft.text.startswith(" ") and draft.logprobs is not None
    scored = tiny.reply_of(member, ScoreJob(tiny.query(id="q"), ANSWER, (Candidate(draft.text, draft.ended, ("x",)),)))
    assert isinstance(scored, Scored)
    (row,) = scored.logprobs
    assert row == pytest.approx(draft.logprobs, abs=0.05)


def test_one_answer_however_it_is_cut(member: Member) -> None:
    member.probe()
    texts = {
        tiny.text_of(tiny.answered([member], tiny.query(id="q"), Settings(segment_tokens=size, max_tokens=24)))
        for size in (4, 12)
    }
    assert len(texts) == 1 and texts.pop()


def test_an_object_is_written_to_its_end_however_the_model_spaces_it(member: Member) -> None:
    llm = SpecFuseChatModel(members=[member], max_tokens=120)
    told = llm.invoke("Give me a JSON object with the keys name and age of Anna, who is 5.", response_format=OBJECT)
    assert set(json.loads(told.text)) == {"name", "age"}
    assert not told.response_metadata["specfuse"]["closed"]


def test_an_ensemble_answers_and_outlives_the_engine(engine: engines.Engine, here: TransformersMember) -> None:
    served = ServerMember(engine.url, engines.MODEL, name="served", tokenizer=engines.folder(), retries=1)
    llm = SpecFuseChatModel(members=[served, here], segment_tokens=6, max_tokens=30, exit="never")
    told = llm.invoke("Name three colours of the rainbow.")
    assert told.text and told.response_metadata["specfuse"]["exits"] == []
    pieces = []
    for chunk in llm.stream("Name three colours of the sea."):
        pieces.append(str(chunk.text))
        if len(pieces) == 2:
            engine.kill()
    assert "".join(pieces)
    engine.start()
    assert llm.invoke("Name three colours of the rainbow.").response_metadata["specfuse"]["exits"] == []
    served.unload()
