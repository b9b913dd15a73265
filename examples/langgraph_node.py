"""As a node of a LangGraph graph. Scripted members stand in for real ones, so that it runs at once."""

from langgraph.graph import END, START, MessagesState, StateGraph

from langchain_specfuse import ScriptedMember, SpecFuseChatModel

llm = SpecFuseChatModel(
    members=[
        ScriptedMember("Take the train: it is faster than the bus.", name="ann"),
        ScriptedMember("Take the train: it is cheaper than the bus.", name="bob"),
    ],
    segment_tokens=3,
)


def answer(state: MessagesState) -> MessagesState:
    return {"messages": [llm.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
graph.add_edge("answer", END)
app = graph.compile()

# Segments arrive as they are agreed, although the node calls invoke().
question = {"messages": [("human", "How do I get to town?")]}
for chunk, metadata in app.stream(question, stream_mode="messages"):
    print(metadata["langgraph_node"], repr(chunk.text))
