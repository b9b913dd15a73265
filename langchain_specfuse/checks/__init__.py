"""Checks of what is streamed: ``SpecFuseChatModel(checks=[...])``.

A check takes the answer so far and returns None, or the reason why it refuses that text. Any such
function is a check; those here are ready-made.

| check | runs at every | |
| --- | --- | --- |
| :func:`forbids` | segment | the answer contains nothing that matches a pattern |
| :func:`max_words`, :func:`max_sentences` | segment | it is not longer |
| :func:`lowercase` | segment | it has no capital letters |
| :func:`grounded` | sentence | its numbers, dates, quotations and links are in the sources |
| :func:`asks` | sentence | a model answers no to a question about each of its sentences |
| :func:`requires` | answer | it contains something that matches a pattern |
| :func:`json_schema` | answer | it is JSON, and valid |
| :func:`python` | answer | its code runs and passes tests |

:func:`redact` replaces what matches, instead of refusing it. ``EMAIL``, ``CARD``, ``IBAN``, ``IP``
and ``PHONE`` are patterns for :func:`forbids` and :func:`redact`.

A check of the whole answer holds it back until it is complete. :func:`at` makes a check run
elsewhere. :func:`fault` is a reason that says which characters are at fault.
"""

from ..core.checks import Check as Check
from ..core.checks import CheckContext as CheckContext
from ..core.checks import fault as fault
from .asking import asks as asks
from .code import python as python
from .personal import CARD as CARD
from .personal import EMAIL as EMAIL
from .personal import IBAN as IBAN
from .personal import IP as IP
from .personal import PHONE as PHONE
from .placing import at as at
from .redacting import redact as redact
from .schemas import json_schema as json_schema
from .sources import grounded as grounded
from .words import forbids as forbids
from .words import lowercase as lowercase
from .words import max_sentences as max_sentences
from .words import max_words as max_words
from .words import requires as requires
