"""Use the chat model in a chain: prompt | llm | parser. The chain streams the answer segment by
segment. The first run fetches 1.2 GB of weights without asking; DEMO=small in the environment takes
smaller models, 0.35 GB."""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from langchain_specfuse import SpecFuseChatModel, demo_members

prompt = ChatPromptTemplate.from_messages(
    [
        ("system", "You are a helpful assistant. Answer in one sentence."),
        ("human", "What is {thing}?"),
    ]
)
llm = SpecFuseChatModel(members=demo_members(), max_tokens=24)
chain = prompt | llm | StrOutputParser()

for text in chain.stream({"thing": "a library"}):
    print(text, end="", flush=True)
print()
