"""Answers from documents: what is found reaches the members, what they may quote is what was found."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import BaseModel

from langchain_specfuse.core.values import Query

from .conftest import SlowMember, called, made, model

NOTES = [
    "The library opens at nine. On Sundays it is closed.",
    "The pool is closed on Mondays. A ticket costs four euros.",
    "The museum shows maps. Entrance is free on Fridays.",
]
PROMPT = ChatPromptTemplate.from_template("{notes}\n\nAnswer with a sentence from the notes above. {question}")


@pytest.fixture(scope="module")
def store() -> InMemoryVectorStore:
    """A real store; its vectors mean nothing here, except that equal texts have equal ones."""
    return InMemoryVectorStore.from_texts(NOTES, DeterministicFakeEmbedding(size=32))


def quotes(found: list[str]) -> list[str]:
    return [f'"{quote}" [{n}]' for n, note in enumerate(found, 1) for quote in re.findall(r"\w[^.]*\.", note)]


def quoting(store: InMemoryVectorStore, llm: Any) -> Runnable[str, str]:
    """A chain whose answers are quotes of what was found."""

    def chain(question: str) -> Runnable[Any, str]:
        found = [note.page_content for note in store.similarity_search(question, k=2)]
        return PROMPT.partial(notes="\n".join(found)) | llm.bind(choice=quotes(found)) | StrOutputParser()

    return RunnableLambda(chain)


def second(query: Query) -> str:
    """Quotes the second note, with the number that it reads."""
    note = query.turns[-1].text.splitlines()[1]
    return f'"{note.split(". ")[0]}." [2]'


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream"])
async def test_an_answer_quotes_what_was_found_and_names_its_source(store: Any, way: str) -> None:
    chain, question = quoting(store, model(second, second)), NOTES[0]
    if way == "invoke":
        answer = chain.invoke(question)
    elif way == "stream":
        answer = "".join(chain.stream(question))
    elif way == "ainvoke":
        answer = await chain.ainvoke(question)
    else:
        answer = "".join([text async for text in chain.astream(question)])
    found = [note.page_content for note in store.similarity_search(question, k=2)]
    assert answer == f'"{found[1].split(". ")[0]}." [2]'


@pytest.mark.parametrize("says", ["I do not know. [7]", '"The library opens at ten." [1]', "[3]", ""])
def test_members_cannot_quote_what_is_not_there(store: Any, says: str) -> None:
    """Whatever they want to say, the answer is a sentence of a note that was found, with that note's number."""
    question = NOTES[1]
    answer = quoting(store, model(lambda query: says, lambda query: says)).invoke(question)
    found = [note.page_content for note in store.similarity_search(question, k=2)]
    assert answer in quotes(found)
    quote, number = re.fullmatch(r'"(.*)" \[(\d)\]', answer).groups()  # type: ignore[union-attr]
    assert quote in found[int(number) - 1]


@pytest.mark.parametrize("way", ["stream", "astream"])
async def test_the_first_words_come_through_the_chain_before_the_answer_is_done(store: Any, way: str) -> None:
    long = " ".join(f"word{number}" for number in range(60))
    llm = model(lambda query: long, lambda query: long, member=SlowMember)
    notes = store.as_retriever(search_kwargs={"k": 1}) | (lambda found: found[0].page_content)
    chain = {"notes": notes, "question": RunnablePassthrough()} | PROMPT | llm | StrOutputParser()
    start = time.perf_counter()

    def noted(text: str) -> tuple[float, str, int]:
        return time.perf_counter() - start, text, llm.members[0].draft_calls

    if way == "stream":
        seen = [noted(text) for text in chain.stream("?")]
    else:
        seen = [noted(text) async for text in chain.astream("?")]
    assert "".join(text for _, text, _ in seen) == long
    assert len(seen) == 20
    assert seen[0][0] < seen[-1][0] / 2
    assert seen[0][2] < seen[-1][2] / 2


def test_sources_are_a_field_of_an_object_that_can_only_hold_what_was_found(store: Any) -> None:
    """The other way to cite: the numbers of the notes as an enum, beside an answer in free words."""
    found = store.similarity_search(NOTES[2], k=2)
    schema = {
        "title": "Answer",
        "type": "object",
        "properties": {
            "sources": {
                "type": "array",
                "items": {"enum": list(range(1, len(found) + 1))},
                "minItems": 1,
                "maxItems": 2,
            },
            "answer": {"type": "string", "maxLength": 80},
        },
        "required": ["sources", "answer"],
    }
    good = model(lambda query: '{"sources": [2], "answer": "On Fridays."}').with_structured_output(schema)
    assert good.invoke("When?") == {"sources": [2], "answer": "On Fridays."}
    lying = model(lambda query: '{"sources": [9], "answer": "On Fridays."}').with_structured_output(schema)
    answer = lying.invoke("When?")
    assert set(answer["sources"]) <= {1, 2}
    assert answer["sources"]


def test_partial_objects_stream_through_the_chain(store: Any) -> None:
    class Answer(BaseModel):
        source: int
        answer: str

    script = '{"source": 1, "answer": "It opens at nine in the morning, every day."}'
    llm = model(lambda query: script, lambda query: script).with_structured_output(Answer.model_json_schema())
    notes = store.as_retriever(search_kwargs={"k": 1}) | (lambda found: found[0].page_content)
    parts = list(({"notes": notes, "question": RunnablePassthrough()} | PROMPT | llm).stream("When?"))
    assert parts[-1] == {"source": 1, "answer": "It opens at nine in the morning, every day."}
    assert len(parts) > 2
    texts = [part["answer"] for part in parts if "answer" in part]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))


def test_an_agent_looks_things_up_with_a_retriever_s_tool(store: Any) -> None:
    from langchain.agents import create_agent

    tool = create_retriever_tool(store.as_retriever(search_kwargs={"k": 1}), "notes", "Notes about the town.")

    def reader(query: Query) -> str:
        last = query.turns[-1]
        return f"The notes say: {last.text}" if last.role == "tool" else called(("notes", {"query": NOTES[1]}))

    state = create_agent(model(reader, reader), [tool]).invoke({"messages": [("human", "Is the pool open?")]})
    assert made(state) == [("notes", {"query": NOTES[1]})]
    assert state["messages"][-1].text == f"The notes say: {NOTES[1]}"
