"""Answers from notes: a vector store of langchain-core with a toy embedding, and the ensemble behind it."""

import math
import re
import zlib

from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_specfuse import SpecFuseChatModel, demo_members

NOTES = [
    "The library opens at nine and closes at six.",
    "The swimming pool is closed on Mondays.",
    "Dogs are welcome in the park, but not in the library.",
]


class WordHashes(Embeddings):
    """Texts with the same words point the same way. Take a real embedding instead."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        vector = [0.0] * 256
        for word in re.findall(r"\w{4,}", text.lower()):
            vector[zlib.crc32(word.rstrip("s").encode()) % 256] += 1.0
        length = math.hypot(*vector) or 1.0
        return [value / length for value in vector]


retriever = InMemoryVectorStore.from_texts(NOTES, WordHashes()).as_retriever(search_kwargs={"k": 1})
notes = retriever | (lambda found: "\n".join(document.page_content for document in found))
prompt = ChatPromptTemplate.from_template("{notes}\n\nUse the text above. {question}")
llm = SpecFuseChatModel(members=demo_members(), max_tokens=24)
chain = {"notes": notes, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()

print(chain.invoke("When does the library open?"))
