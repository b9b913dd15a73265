"""Answer from documents, with citations: every number, date and quotation of the answer must occur
in the passages that were found, and every sentence must name its passage.

    pip install langchain-specfuse langchain langchain-openai
    OPENAI_API_KEY=... python examples/rag.py
"""

import re

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings

from langchain_specfuse import SpecFuseChatModel, checks

NOTES = [
    "The library opens at 9 and closes at 18. On Sundays it is closed.",
    "Bus 7 goes from the station to the harbour every 10 minutes. The last bus leaves at 23:50.",
    "The museum shows old maps and ships. Entrance is free on the first Friday of the month.",
]


def cited(sentence: str) -> str | None:
    """A check of sentences: each must end with a mark such as [1]."""
    return None if re.search(r"\[\d\]\W*$", sentence) else "a sentence without its source"


def answered_from(found: dict) -> Runnable:
    """The rest of the chain, with the passages of this question as the sources of its checks."""
    passages: list[Document] = found["passages"]
    numbered = "\n".join(f"[{at}] {one.page_content}" for at, one in enumerate(passages, 1))
    sources = [checks.grounded(passages), checks.at("sentence", cited)]
    return prompt.partial(passages=numbered) | llm.bind(checks=sources) | StrOutputParser()


prompt = ChatPromptTemplate.from_template(
    "Passages:\n{passages}\n\nAnswer in one sentence from the passages alone. End it with the "
    "number of its passage before the full stop, such as [1].\n\n{question}"
)
llm = SpecFuseChatModel(members=["openai:gpt-5-mini", "openai:gpt-5-nano"])
store = InMemoryVectorStore.from_texts(NOTES, OpenAIEmbeddings(model="text-embedding-3-small"))
found = {
    "passages": store.as_retriever(search_kwargs={"k": 2}),
    "question": RunnablePassthrough(),
}
chain = found | RunnableLambda(answered_from)

for text in chain.stream("How often does the bus from the station to the harbour go?"):
    print(text, end="", flush=True)
print()
