"""An agent with two hosted models and a check: one model leads, the other one continues if it
fails, and no call runs before it was checked.

    pip install "langchain-specfuse[agents]" langchain-openai langchain-anthropic
    OPENAI_API_KEY=... ANTHROPIC_API_KEY=... python examples/agent.py
"""

from langchain.agents import create_agent
from langchain_core.tools import tool

from langchain_specfuse import SpecFuseCallbackHandler, SpecFuseChatModel, checks
from langchain_specfuse.checks import CheckContext

MOST = 100


@tool
def refund(order: int, amount: int) -> str:
    """Pay an amount in euros back to the customer of an order."""
    return f"{amount} euros are on their way to the customer of order {order}"


def small_amounts(text: str, context: CheckContext) -> str | None:
    """A check of calls: returns what is wrong, or None."""
    amount = context.tool_calls[-1]["args"]["amount"]
    return f"pays {amount} euros, more than {MOST}" if amount > MOST else None


llm = SpecFuseChatModel(
    members=["openai:gpt-5-mini", "anthropic:claude-sonnet-4-6"],
    checks=[checks.at("call", small_amounts), checks.forbids("(?i)guarantee")],
)
agent = create_agent(
    llm, [refund], system_prompt=f"You refund at most {MOST} euros. You guarantee nothing."
)

show = SpecFuseCallbackHandler(
    on_rejected=lambda event: print(f"[refused: {event.reason}]"),
    on_exit=lambda event: print(f"\n[{event.member} failed, the next model goes on]"),
)
question = {"messages": [("human", "My order 17 arrived broken. I want my 90 euros back.")]}
for chunk, where in agent.stream(question, {"callbacks": [show]}, stream_mode="messages"):
    if where["langgraph_node"] == "tools":
        print(f"[tool: {chunk.text}]")
    else:
        print(chunk.text, end="", flush=True)
print()
