"""What earlier versions had and this one refuses: the one table that such refusals come from.

Nothing here keeps an old name working. A row says in one line what to do instead. Delete it when no
user's code can still have the old thing.
"""

from __future__ import annotations

from collections.abc import Mapping

from .errors import UsageError, advised

REMOVED: Mapping[str, str] = {
    "a member as a dict": (
        "make the member: VllmMember('org/model', memory=0.5), LlamaCppMember, TransformersMember, "
        "ServerMember or ChatModelMember; on a cluster, RayMember(member)"
    ),
    "a member as JSON": "make members in Python, and name them: --members FILE.py:NAME",
    'result="fuse"': "examples/fusion.py merges the answers of several models with LangChain alone",
    "tokenizer= for a server other than vLLM and llama-server": (
        "leave out tokenizer=: then the server joins as a chat model; or pass one, "
        "ChatOpenAI(base_url=..., model=...)"
    ),
    'trace="members"': "leave it out: each round's run has what every member drafted and scored",
    'trace="summary"': "leave it out: the default has the same metadata, and a run for each round",
    "embeddings=": "leave it out, and make the calibration file again: the router reads words",
    "langchain-specfuse plan": "ask a question: if a model does not fit, an error says so; "
    "gpu=, memory= and tensor_parallel= of VllmMember choose its place",
}
"""What was removed -> what to do instead."""


def removed(what: str) -> UsageError:
    """The error for something that this version no longer has. ``what`` is a key of the table."""
    return advised(UsageError(f"{what} is no longer supported"), REMOVED[what])
