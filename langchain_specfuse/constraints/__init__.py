"""What an answer must look like, held across tokenizers: masks for members, a referee for the loop.

Knows texts, bytes and vocabularies; no models, no torch, no LangChain. What reads the grammars is an extra package:
``pip install "langchain-specfuse[structured]"``.
"""

from ._calls import Parsed, calls_of, canonical, format_of
from ._checks import check
from ._grammar import Grammar, Vocabulary, vocabulary
from ._referee import referee_for
from ._spacing import respaced
from ._states import State

__all__ = [
    "Grammar",
    "Parsed",
    "State",
    "Vocabulary",
    "calls_of",
    "canonical",
    "check",
    "format_of",
    "referee_for",
    "respaced",
    "vocabulary",
]
