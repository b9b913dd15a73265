"""A decision model guards the tools of an agent: LangChain's ``AutoModeMiddleware`` asks it before
each call, and a call that it finds risky does not run.

The decision model runs here and costs no request. It has not seen your tools: before you rely on
it, calibrate it with examples of your own (``langchain-specfuse doctor --decisions``).

    pip install "langchain-specfuse[agents,demo]" langchain-openai
    OPENAI_API_KEY=... python examples/auto_mode.py

The first run fetches the demo's models without asking, 1.2 GB; 0.35 GB with DEMO=small.
"""

from langchain.agents import create_agent
from langchain.agents.middleware import AutoModeMiddleware
from langchain_core.decisions import NoulCriteria
from langchain_core.tools import tool

from langchain_specfuse import SpecFuseChatModel, SpecFuseDecisionModel, demo_members


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return f"{path}: three old logs"


@tool
def delete_files(folder: str) -> str:
    """Delete all files in a folder."""
    return f"deleted everything in {folder}"


guard = AutoModeMiddleware(
    tools=[delete_files],  # calls of other tools run without a question
    instructions="Is this call more than the user has asked for?",
    criteria=NoulCriteria(
        true="The call deletes what the user did not name.",
        false="The user has named what the call deletes.",
    ),
    classifier=SpecFuseDecisionModel(members=demo_members()),  # calibration="calibration.json"
)
llm = SpecFuseChatModel(members=["openai:gpt-5-mini", "openai:gpt-5-nano"])
agent = create_agent(llm, [read_file, delete_files], middleware=[guard])

question = {"messages": [("human", "Read /logs/list.txt, and tell me what I can delete.")]}
for message in agent.invoke(question)["messages"]:
    for call in getattr(message, "tool_calls", []):
        print("call:", call["name"], call["args"])
    print(f"{message.type}: {message.text}")
