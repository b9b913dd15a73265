"""Check what an agent says, and the calls that it makes, before anybody sees them.

Runs without a network: `Hosted` stands for a ChatOpenAI or another chat model of a provider.
"""

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from langchain_specfuse import SpecFuseCallbackHandler, SpecFuseChecks, checks
from langchain_specfuse.checks import CheckContext


class Hosted(BaseChatModel):
    """Wants to pay too much at first, and to promise something."""

    amounts: tuple[int, ...] = (900, 90)

    @property
    def _llm_type(self) -> str:
        return "hosted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self.bind(tools=tools, **options)

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        if messages[-1].type == "tool":
            message = AIMessage("Bo has the money. Guaranteed, without any doubt!")
        elif any(message.type == "tool" for message in messages):  # it continues its text
            said = [str(message.text) for message in messages if message.type == "ai"][-1]
            message = AIMessage("Bo has the money. He can see it tomorrow.".removeprefix(said))
        else:
            call = {"name": "pay", "args": {"amount": self.amounts[0]}, "id": "call_1"}
            message = AIMessage("", tool_calls=[call])
            self.amounts = self.amounts[-1:]
        return ChatResult(generations=[ChatGeneration(message=message)])


def pay(amount: int) -> str:
    """Pay Bo."""
    print(f" [paid {amount}]")
    return f"paid {amount}"


def small_amounts(text: str, context: CheckContext) -> str | None:
    amount = context.tool_calls[-1]["args"]["amount"]
    return f"pays {amount}, more than 100" if amount > 100 else None


rules = [checks.at("call", small_amounts), checks.forbids("(?i)guarantee")]
agent = create_agent(Hosted(), [pay], middleware=[SpecFuseChecks(rules)])

question = {"messages": [("human", "Pay Bo what we owe.")]}
report = SpecFuseCallbackHandler(on_rejected=lambda event: print(f" [{event.reason}]"))
for chunk, _ in agent.stream(question, {"callbacks": [report]}, stream_mode="messages"):
    if chunk.type == "AIMessageChunk":
        print(chunk.text, end="", flush=True)
print()
