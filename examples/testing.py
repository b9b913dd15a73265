"""Test code that uses a chat model, without a model.

pip install langchain-specfuse pytest
pytest examples/testing.py
"""

from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from langchain_specfuse import ScriptedMember, SpecFuseChatModel


def translator(llm: BaseChatModel) -> Runnable[dict[str, str], str]:
    """Your code."""
    return (
        ChatPromptTemplate.from_template("Translate into French: {text}") | llm | StrOutputParser()
    )


def test_the_chain_gives_plain_text() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("Bonjour."), ScriptedMember("Bonjour.")])
    assert translator(llm).invoke({"text": "Hello."}) == "Bonjour."


def test_the_chain_asks_for_french() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(lambda query: query.turns[-1].text)])
    assert "French" in translator(llm).invoke({"text": "Hello."})


def test_one_failing_member_does_not_stop_the_chain() -> None:
    llm = SpecFuseChatModel(
        members=[ScriptedMember("Bonjour."), ScriptedMember("Bonjour.", fails_in=1)]
    )
    assert translator(llm).invoke({"text": "Hello."}) == "Bonjour."


if __name__ == "__main__":
    test_the_chain_gives_plain_text()
    test_the_chain_asks_for_french()
    test_one_failing_member_does_not_stop_the_chain()
    print("all fine")
