"""Ask many questions at once. Jobs for the same member share a batch, and answers stream
concurrently."""

import asyncio

from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.values import Query


def counting(query: Query) -> str:
    """The answer of the scripted members. In your code, name real models instead."""
    return "".join(f"{number} " for number in range(1, int(query.turns[-1].text) + 1)) + "done."


llm = SpecFuseChatModel(
    members=[ScriptedMember(counting), ScriptedMember(counting)], method=Method(segment_tokens=4)
)


async def main() -> None:
    # Ask all questions at once; the answers have the order of the questions.
    for answer in await llm.abatch(["2", "5", "9"]):
        print(answer.text)

    # Ask all questions at once, and print each segment when it arrives.
    async def follow(question: str) -> None:
        async for chunk in llm.astream(question):
            print(f"[{question}] {chunk.text!r}")

    await asyncio.gather(*(follow(question) for question in ("3", "7")))

    # Closing a stream stops its answer within one round.
    async for chunk in llm.astream("1000"):
        print(f"[1000] {chunk.text!r}, enough")
        break


asyncio.run(main())
