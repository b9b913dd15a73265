"""Checks of what is streamed: ``SpecFuseChatModel(checks=[...])``.

A check takes the answer so far and returns None, or the reason why that text may not stand.
"""

from ..core.checks import Check as Check
from ..core.checks import CheckContext as CheckContext
