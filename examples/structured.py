"""Get objects as answers. A grammar makes them valid, however small the models are.

    pip install "langchain-specfuse[demo]"
    DEMO=small python examples/structured.py

The first run fetches the demo's models without asking, 0.35 GB; 1.2 GB without DEMO=small.
"""

from typing import Literal

from pydantic import BaseModel, Field

from langchain_specfuse import SpecFuseChatModel, demo_members


class Booking(BaseModel):
    """A table in a restaurant."""

    name: str = Field(max_length=20)
    people: int = Field(ge=1, le=12)
    meal: Literal["lunch", "dinner"]
    smoking: bool


llm = SpecFuseChatModel(members=demo_members(), max_tokens=60)
booking = llm.with_structured_output(Booking)
letter = "This is Maria. We are four and would like a table for dinner, and we do not smoke."

result = booking.invoke(f"Write down the booking. {letter}")
print(repr(result))

# A dict can be streamed while it is written.
for part in llm.with_structured_output(Booking.model_json_schema()).stream(
    f"Write down the booking. {letter}"
):
    print(part)

# The same works for a choice and for a pattern.
print(llm.invoke(f"{letter} For lunch or for dinner?", choice=["lunch", "dinner"]).text)
print(
    llm.invoke(
        "In which year did the first man land on the moon?", regex="In 1[89][0-9]{2}, .{10,60}\\."
    ).text
)
