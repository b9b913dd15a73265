"""Answers from documents: what is found reaches the members, and what they cite was found."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_specfuse.core.values import Query

from .conftest import model

NOTES = ["The library opens at nine.", "The pool is closed on Mondays.", "The museum shows maps."]
PROMPT = ChatPromptTemplate.from_template("{notes}\n\nAnswer with a sentence from the notes above. {question}")


@pytest.fixture(scope="module")
def store() -> InMemoryVectorStore:
    """Its vectors have no meaning, except that equal texts have equal ones."""
    return InMemoryVectorStore.from_texts(NOTES, DeterministicFakeEmbedding(size=32))


def second(query: Query) -> str:
    """Quotes the second note that it reads."""
    return f'"{query.turns[-1].text.splitlines()[1]}" [2]'


@pytest.mark.parametrize("way", ["invoke", "astream"])
async def test_an_answer_quotes_what_was_found_and_names_its_source(store: Any, way: str) -> None:
    def chain(question: str) -> Any:
        found = [note.page_content for note in store.similarity_search(question, k=2)]
        quotes = [f'"{note}" [{number}]' for number, note in enumerate(found, 1)]
        llm = model(second, second).bind(choice=quotes)
        return PROMPT.partial(notes="\n".join(found)) | llm | StrOutputParser()

    rag = RunnableLambda(chain)
    answer = rag.invoke(NOTES[0]) if way == "invoke" else "".join([text async for text in rag.astream(NOTES[0])])
    match = re.fullmatch(r'"(.*)" \[2\]', answer)
    assert match and match[1] == store.similarity_search(NOTES[0], k=2)[1].page_content


def test_partial_objects_stream_through_a_chain(store: Any) -> None:
    schema = {
        "title": "Answer",
        "type": "object",
        "properties": {"source": {"enum": [1, 2]}, "answer": {"type": "string"}},
        "required": ["source", "answer"],
    }
    whole = {"source": 1, "answer": "It opens at nine in the morning, every day."}
    llm = model(lambda query: json.dumps(whole), lambda query: json.dumps(whole)).with_structured_output(schema)
    notes = store.as_retriever(search_kwargs={"k": 1}) | (lambda found: found[0].page_content)
    parts = list(({"notes": notes, "question": RunnablePassthrough()} | PROMPT | llm).stream("When?"))
    assert parts[-1] == whole and len(parts) > 2
    texts = [part["answer"] for part in parts if "answer" in part]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
