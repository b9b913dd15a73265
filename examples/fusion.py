"""Fusion in LCEL: several models answer in parallel, then one writes the final answer from theirs.

This is plain LangChain: the package does not merge answers, because that made answers of small
models worse in our study (docs/development/what-is-shown.md). Compare it with one model on
questions of your own.

    pip install langchain-specfuse langchain langchain-openai langchain-anthropic
    OPENAI_API_KEY=... ANTHROPIC_API_KEY=... python examples/fusion.py
"""

from langchain.chat_models import init_chat_model
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel, RunnablePassthrough

from langchain_specfuse import SpecFuseChatModel, checks

MERGE = ChatPromptTemplate.from_template(
    "{question}\n\nSeveral assistants have answered this, each alone:\n\n{answers}\n\n"
    "Any part of these answers may be wrong. Write the final answer, in the form that was asked "
    "for, and do not mention these answers."
)


def numbered(answers: dict[str, BaseMessage]) -> str:
    texts = [message.text for message in answers.values()]
    return "\n\n".join(f"Answer {number}:\n{text}" for number, text in enumerate(texts, 1))


authors = RunnableParallel(
    first=init_chat_model("openai:gpt-5-mini"),
    second=init_chat_model("anthropic:claude-sonnet-4-6"),
)
# The writer is checked, and has a reserve.
writer = SpecFuseChatModel(
    members=["openai:gpt-5", "anthropic:claude-sonnet-4-6"], checks=[checks.max_words(60)]
)
fusion = (
    {"question": RunnablePassthrough(), "answers": authors | numbered}
    | MERGE
    | writer
    | StrOutputParser()
)

for text in fusion.stream("What should I know before a weekend in Bergen?"):
    print(text, end="", flush=True)
print()
