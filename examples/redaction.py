"""Redaction: personal data and secrets of your own are replaced while the answer is streamed,
before anybody sees a part of them.

    pip install langchain-specfuse langchain langchain-openai
    OPENAI_API_KEY=... python examples/redaction.py
"""

from langchain_specfuse import SpecFuseChatModel, checks

MINUTES = """Ann Smith (ann.smith@example.com, +49 151 2345678) pays the invoice of project PX-4711.
The money goes to DE89 3704 0044 0532 0130 00."""

llm = SpecFuseChatModel(
    members=["openai:gpt-5-mini"],
    checks=[
        checks.redact("email"),
        checks.redact("phone"),
        checks.redact("iban"),
        checks.redact(r"PX-\d+", "[project]"),
        checks.redact("Ann Smith", "[name]"),
    ],
)
for chunk in llm.stream(f"Sum up these minutes in two sentences:\n\n{MINUTES}"):
    print(chunk.text, end="", flush=True)
    if chunk.response_metadata.get("specfuse"):
        counts = chunk.response_metadata["specfuse"]["checks"]
print()
for rule, count in counts.items():
    print(f"{rule}: {count['redacted']} replaced")
