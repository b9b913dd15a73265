"""Constraints on the form of an answer: token masks for members, and a referee for the loop.

Everything here works on texts, bytes and vocabularies, without models, torch or LangChain.
llguidance compiles the grammars; the extra ``langchain-specfuse[structured]`` installs it.
"""

from .calls import CallPiece, CallReader, canonical, format_in, trigger
from .grammar import Grammar, State, Vocabulary, vocabulary
from .referee import check, referee_for
from .rules import arguments_schema, half_escape, reader_for, respaced, schema_of
from .validation import fault, refuse_invalid
from .vocabulary import preload

__all__ = [
    "CallPiece",
    "CallReader",
    "Grammar",
    "State",
    "Vocabulary",
    "arguments_schema",
    "canonical",
    "check",
    "fault",
    "format_in",
    "preload",
    "reader_for",
    "referee_for",
    "refuse_invalid",
    "half_escape",
    "respaced",
    "schema_of",
    "trigger",
    "vocabulary",
]
