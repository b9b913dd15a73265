"""The same weights in float32 say the same, greedily, wherever they are hosted: in this process, by vLLM, behind Ray.

Rounding may decide between two tokens that are as good as equally likely. So where two texts part, the member in this
process is asked how likely both ways on are: closer than ``TIE``, and it was a tie; else it is another answer.
``make test-serving`` runs these; what cannot be had here is skipped, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile

import pytest

pytest.importorskip("httpx")

from langchain_specfuse import RayMember
from langchain_specfuse.core.member import Member
from langchain_specfuse.core.values import Candidate, DraftJob, Query, Sampling, Scored, ScoreJob, Segment, Settings
from langchain_specfuse.members.server import ServerMember
from langchain_specfuse.members.transformers import TransformersMember

from . import clusters, engines, tiny
from .contract import FOREIGN, QUESTIONS

pytestmark = [
    pytest.mark.serving,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning:ray.*"),
]
TIE = 1e-3
"""Two tokens whose log-probabilities lie closer are a tie."""
ASKED = (*QUESTIONS, "What is 17 plus 25?", "List three animals, one a line.")
SETTINGS = Settings(segment_tokens=7, max_tokens=32)


@pytest.fixture(scope="module")
def here() -> TransformersMember:
    one = TransformersMember(str(engines.folder()), name="smol", dtype="float32")
    one.probe()
    return one


@pytest.fixture(scope="module", params=["ray", "vllm"])
def elsewhere(request: pytest.FixtureRequest, engine_for: Callable[[str], engines.Engine]) -> Iterator[Member]:
    """The same weights in float32 in another place."""
    if request.param == "ray":
        if not clusters.installed():
            pytest.skip(clusters.MISSING)
        with clusters.running() as cluster:
            hosted = TransformersMember(str(engines.folder()), name="smol", dtype="float32")
            there = RayMember(hosted, cluster=cluster.address, replicas=2, num_cpus=1)
            there.probe()
            yield there
            there.unload()
        return
    served = ServerMember(engine_for("vllm").url, engines.MODEL, name="smol", tokenizer=engines.folder())
    served.probe()
    yield served
    served.unload()


def test_a_question_gets_the_same_answer(here: TransformersMember, elsewhere: Member) -> None:
    for number, question in enumerate(ASKED):
        query = tiny.query(question, id=f"q{number}")
        own, theirs = (tiny.text_of(tiny.answered([one], query, SETTINGS)) for one in (here, elsewhere))
        assert own
        assert own == theirs or tied(here, query, (), own, theirs), f"{question}\n{own!r}\n{theirs!r}"


def test_a_draft_after_the_words_of_others_is_the_same(here: TransformersMember, elsewhere: Member) -> None:
    for number, answer in enumerate(FOREIGN):
        query = tiny.query(QUESTIONS[0], id=f"f{number}")
        job = DraftJob(query, answer, 10, 64, Sampling())
        own, theirs = (str(tiny.reply_of(one, job).text) for one in (here, elsewhere))  # type: ignore[union-attr]
        assert own == theirs or tied(here, query, answer, own, theirs), f"{answer}\n{own!r}\n{theirs!r}"


def test_the_telling_tells_other_answers_from_ties(here: TransformersMember) -> None:
    query = tiny.query(QUESTIONS[0], id="t")
    own = tiny.text_of(tiny.answered([here], query, SETTINGS))
    words = own.split(" ")
    for wrong in ("", own[:-3] + "xyz", " ".join([*words[:4], "tin", *words[5:]])):
        assert not tied(here, query, (), own, wrong)


def tied(here: TransformersMember, query: Query, answer: tuple[Segment, ...], own: str, theirs: str) -> bool:
    """Whether both went a way that is as likely, where they parted."""
    one, other = (here.words.encode(text) for text in (own, theirs))
    alike = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    if alike == min(len(one), len(other)):
        return False  # the longer goes on where the shorter ended
    agreed = (*answer, Segment(here.words.decode(one[:alike]))) if alike else answer
    ways = [Candidate(here.words.decode([ids[alike]]), False, (name,)) for ids, name in ((one, "a"), (other, "b"))]
    told = tiny.reply_of(here, ScoreJob(query, agreed, tuple(ways)))
    assert isinstance(told, Scored)
    first, second = (row[0] for row in told.logprobs)
    return abs(first - second) < TIE
