"""What an address of a server may be. It is shown in names, traces and errors, so nothing secret may stand in it.

Knows URLs; asks nobody.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from ..errors import UsageError, advised


def refuse_secrets(url: str) -> None:
    """An address with a user, a password or a query is refused, and not shown.

    >>> refuse_secrets("http://localhost:8000/v1#my-model")
    """
    try:
        told = urlsplit(url)
    except ValueError as error:
        raise advised(UsageError(f"a server's address cannot be read: {error}"), "http://host:8000/v1") from None
    if "@" in told.netloc or told.query:
        what = "a user or a password" if "@" in told.netloc else "a query"
        secret = UsageError(f"the address of the server {told.hostname} holds {what}; an address is shown to everybody")
        advice = "put the key into the environment variable SPECFUSE_API_KEY, or name another: api_key_env="
        raise advised(secret, f"{advice}; 'Basic ...' is sent as it is")
