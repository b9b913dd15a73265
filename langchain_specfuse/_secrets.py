"""Keys where none belong: the arguments of a member are shown, in traces and in what ``dumps`` writes.

Knows what such arguments are called; nothing of members.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .errors import UsageError, advised

SECRET = re.compile(r"(key|token|password|secret|authorization|headers|auth)$", re.IGNORECASE)


def refuse_secrets(given: Mapping[str, Any]) -> None:
    """Refuse arguments that nobody may see, without a word of what they hold."""
    secret = next((key for key in given if SECRET.search(str(key))), None)
    if secret is not None:
        error = UsageError(f"a member given as a dict must not hold {secret!r}: what it holds is shown in traces")
        advice = "put a server's key into the environment variable SPECFUSE_API_KEY, or name another: api_key_env="
        raise advised(error, advice)
