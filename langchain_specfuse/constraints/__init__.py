"""What an answer must look like: masks for members, and a referee for the loop.

Knows texts, bytes and vocabularies; no models, no torch, no LangChain. The grammars are read by
llguidance, which the extra ``langchain-specfuse[structured]`` installs.
"""

from .calls import CallReader, canonical, format_in, trigger
from .grammar import Grammar, State, Vocabulary, vocabulary
from .referee import check, referee_for
from .rules import reader_for, respaced

__all__ = [
    "CallReader",
    "Grammar",
    "State",
    "Vocabulary",
    "canonical",
    "check",
    "format_in",
    "reader_for",
    "referee_for",
    "respaced",
    "trigger",
    "vocabulary",
]
