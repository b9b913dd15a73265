"""Two real models write one answer together. They come from the hub or the package index, are
fetched once, and need no GPU."""

from langchain_specfuse import SpecFuseChatModel, demo_members

llm = SpecFuseChatModel(members=demo_members(), max_tokens=30)

for chunk in llm.stream("Why is the sky blue?"):
    print(chunk.text, end="", flush=True)
    if chunk.response_metadata.get("specfuse"):
        summary = chunk.response_metadata["specfuse"]
print()
print(f"{summary['rounds']} rounds, written by {summary['shares']}")
