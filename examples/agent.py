"""An agent with two very small models calls a tool, reads its result, and answers. The first run
fetches 1.2 GB of weights without asking; DEMO=small in the environment takes smaller models,
0.35 GB."""

from collections.abc import Callable
from typing import Literal

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, ModelResponse, wrap_model_call
from langchain_core.tools import tool

from langchain_specfuse import SpecFuseChatModel, demo_members

HOURS = {"library": "from 9 to 6", "museum": "from 10 to 5", "swimming pool": "from 7 to 10"}


@tool
def opening_hours(place: Literal["library", "museum", "swimming pool"]) -> str:
    """When a place in town is open."""
    return f"The {place} is open {HOURS[place]}."


@wrap_model_call
def tool_first(
    request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]
) -> ModelResponse:
    """Make the models call a tool first, and then answer in a sentence.

    Models of this size cannot decide that themselves: they would repeat the call without end. Leave
    this middleware out for larger models.
    """
    if request.messages[-1].type != "tool":
        return handler(request.override(tool_choice="any"))
    return handler(
        request.override(tool_choice="none", model_settings={"regex": r"[A-Z][^.<>{}\n]{9,120}\."})
    )


llm = SpecFuseChatModel(members=demo_members(), max_tokens=40)
agent = create_agent(llm, [opening_hours], middleware=[tool_first])

question = {"messages": [("human", "When can I go to the museum?")]}
for message, where in agent.stream(question, stream_mode="messages"):
    for piece in getattr(message, "tool_call_chunks", []):
        print(piece["name"] or "", piece["args"] or "", end="")
    if where["langgraph_node"] == "tools":
        print("\ntool:", message.text)
    else:
        print(message.text, end="", flush=True)
print()
