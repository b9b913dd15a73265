"""A LangGraph graph has the ensemble in one node and its tools in another, and streams text and
rounds.

Scripted members replace real ones, so that the example runs immediately.
"""

from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from langchain_specfuse import Method, ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel
from langchain_specfuse.core.values import Query


@tool
def next_train(town: str) -> str:
    """When the next train to a town leaves."""
    return f"The next train to {town} leaves at 10:42."


def clerk(query: Query) -> str:
    if query.turns[-1].role == "tool":
        return query.turns[-1].text + " Have a good journey!"
    return '<tool_call>\n{"name": "next_train", "arguments": {"town": "Ulm"}}\n</tool_call>'


llm = SpecFuseChatModel(
    members=[ScriptedMember(clerk, name="ann"), ScriptedMember(clerk, name="bob")],
    method=Method(segment_tokens=5),
)
tools = [next_train]
bound = llm.bind_tools(tools)

graph = StateGraph(MessagesState)
graph.add_node("answer", lambda state: {"messages": [bound.invoke(state["messages"])]})
graph.add_node("tools", ToolNode(tools))
graph.add_edge(START, "answer")
graph.add_conditional_edges("answer", tools_condition)
graph.add_edge("tools", "answer")
app = graph.compile()

# Send rounds into the graph's own stream.
rounds = SpecFuseCallbackHandler(on_round=lambda event: get_stream_writer()(event))
question = {"messages": [("human", "When does the next train to Ulm leave?")]}
for mode, item in app.stream(question, {"callbacks": [rounds]}, stream_mode=["messages", "custom"]):
    if mode == "custom":
        print(f"        round {item.number}, drafted by {', '.join(item.authors)}")
    elif message := item[0].text or getattr(item[0], "tool_call_chunks", ""):
        print(item[1]["langgraph_node"], repr(message))
