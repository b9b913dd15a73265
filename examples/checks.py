"""Check what is streamed: no text is shown before it has passed the checks.

A draft that fails is replaced within the stream: by another member's draft, or by its own beginning
with another continuation. The first run fetches 1.2 GB of weights without asking; DEMO=small in the
environment takes smaller models, 0.35 GB.
"""

from langchain_specfuse import SpecFuseCallbackHandler, SpecFuseChatModel, checks, demo_members


def no_first_person(text: str) -> str | None:
    """A check is a function of the answer so far. It returns what is wrong, or None."""
    return "speaks of itself" if {"I", "I'm", "I'll", "my"} & set(text.split()) else None


llm = SpecFuseChatModel(
    members=demo_members(),
    checks=[no_first_person, checks.forbids("(?i)sunlight"), checks.max_words(80)],
    max_tokens=60,
)

show = SpecFuseCallbackHandler(
    on_rejected=lambda event: print(
        f"\n   [not shown: {event.held_back + event.text!r}: {event.reason}]"
    )
)
for chunk in llm.stream("Why is the sky blue?", {"callbacks": [show]}):
    print(chunk.text, end="", flush=True)
    if chunk.response_metadata.get("specfuse"):
        summary = chunk.response_metadata["specfuse"]
print()
for name, counts in summary["checks"].items():
    print(f"{name}: {counts['passed']} passed, {counts['rejected']} rejected")
