"""One answer from several: members answer in parallel, then one model writes the final answer.

This package does not merge answers. In our study, it made answers of small models worse
(docs/development/what-is-shown.md), so compare it with one model on questions of your own.
"""

import re

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel

from langchain_specfuse import ScriptedMember, SpecFuseChatModel

MERGE = ChatPromptTemplate.from_template(
    "{question}\n\nSeveral assistants have answered this, each alone:\n\n{answers}\n\n"
    "Any part of these answers may be wrong. Write the final answer, in the form that was asked "
    "for, and do not mention these answers."
)


def writes(text):
    return SpecFuseChatModel(members=[ScriptedMember(text)])  # or any other chat model


members = RunnableParallel(ann=writes("Pack a coat."), bob=writes("It rains."))
writer = writes(lambda query: " ".join(re.findall(r"Answer \d:\n(.+)", query.turns[-1].text)))


def numbered(answers):
    texts = [answers[name].text for name in sorted(answers)]
    return "\n\n".join(f"Answer {number}:\n{text}" for number, text in enumerate(texts, 1))


fusion = {"question": lambda text: text, "answers": members | numbered} | MERGE | writer

for chunk in fusion.stream("What should I know before a weekend in Bergen?"):
    print(chunk.text, end="", flush=True)
print()
