"""Hide keys, tokens and passwords in errors, log lines and descriptions of members.

A value is secret because of its name (``api_key``, ``Authorization``), its type (``SecretStr``) or
its place in a URL, or because it is an environment variable with such a name. After a call of
:func:`remember`, the secrets in its argument are replaced wherever they appear as text.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    import logging

_E = TypeVar("_E", bound=BaseException)

HIDDEN = "***"
DEEPEST = 12
"""Values that are nested more deeply are not searched."""

_ANYWHERE = frozenset(
    {
        *("password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential"),
        *("credentials", "authorization", "cookie", "cookies", "apikey", "bearer", "headers"),
    }
)
"""A name that contains one of these words names a secret."""
_LAST = frozenset({"key", "keys", "token", "auth"})
"""A name that ends with one of these words names a secret, with the following exceptions."""
_SPECIAL_TOKENS = frozenset(
    {
        *("bos", "eos", "pad", "unk", "sep", "cls", "mask", "stop", "start", "end", "special"),
        *("image", "audio", "video", "turn"),
    }
)
"""Names such as ``eos_token`` refer to texts of a tokenizer, not to secrets."""
_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""The shell's variables for working directories, whose names look like those of passwords."""
_PLAIN_HEADERS = frozenset(
    {
        *("accept", "accept-encoding", "accept-language", "anthropic-beta", "anthropic-version"),
        *("content-type", "host", "http-referer", "openai-beta", "origin", "referer", "user-agent"),
        "x-title",
    }
)
"""Headers that are not secret. Their values are words that other texts contain too."""
_NAMES = frozenset({"name", "model", "model_name", "adapter", "base"})
"""Values with these names distinguish models in the keys of caches. They are not compared with the
environment, where ``MODEL_KEY`` may contain the name of a model."""
_IN_QUERIES = frozenset({"sig", "signature", "code"})
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_USER = re.compile(r"(?<=//)[^/\s@'\"]+(?=@)|\b[\w.+-]+:[^\s/@'\"]+(?=@\w)")
"""A user and password in an address, with or without its scheme."""
_PARAMETER = re.compile(r"(?<=[?&])([\w.-]+)=([^&\s#'\"]+)")

_KNOWN: set[str] = set()


@lru_cache(maxsize=4096)
def is_secret(name: object) -> bool:
    """Whether a value with this name is a secret.

    >>> [name for name in ("api_key", "hfToken", "X-Api-Key", "HF_TOKEN") if not is_secret(name)]
    []
    >>> [name for name in ("max_tokens", "tokenizer", "eos_token", "keyboard") if is_secret(name)]
    []
    """
    words = [word.lower() for word in _WORDS.findall(str(name))]
    if not words:
        return False
    if _ANYWHERE.intersection(words):
        return True
    special = words[-1] == "token" and words[-2:-1] and words[-2] in _SPECIAL_TOKENS
    return words[-1] in _LAST and not special


def found_in(value: Any, *, secret: bool = False, depth: int = 0) -> Iterator[str]:
    """All secrets in a value, at any depth: in mappings, lists, URLs and ``SecretStr``."""
    if depth > DEEPEST:
        return
    reveal = getattr(value, "get_secret_value", None)
    if callable(reveal):
        value = reveal()
        secret = True
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        if secret:
            yield value
        else:
            yield from _in_text(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            hidden = is_secret(key) or (secret and str(key).lower() not in _PLAIN_HEADERS)
            yield from found_in(inner, secret=hidden, depth=depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from found_in(inner, secret=secret, depth=depth + 1)
    elif secret and isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _in_text(text: str) -> Iterator[str]:
    """The passwords and keys of a URL."""
    if "://" not in text:
        return
    try:
        url = urlsplit(text)
        user = url.password or url.username
        if user:
            yield user
    except ValueError:  # not a URL
        return
    for name, value in _PARAMETER.findall(text):
        if is_secret(name) or name.lower() in _IN_QUERIES:
            yield value


def remember(value: Any) -> None:
    """Hide the secrets in this value from now on, also in this package's logs."""
    import logging  # not at the top: the core must not import it

    logging.getLogger("langchain_specfuse").addFilter(_hide_in)
    for secret in found_in(value):
        plain = unquote(secret)
        spellings = [secret, plain, quote(plain, safe="")]
        if plain.count(" ") == 1:  # the scheme in front of a key ("Bearer ...") is not secret
            spellings.append(plain.partition(" ")[2])
        _KNOWN.update(filter(_is_telling, spellings))


def _is_telling(secret: str) -> bool:
    """Whether this can be hidden in every text. Ordinary words cannot, such as ``ollama`` or
    ``none`` in place of a missing key."""
    mixed = any(map(str.isalpha, secret)) and any(map(str.isdigit, secret))
    return len(secret) >= 8 or (len(secret) >= 4 and mixed)


def masked(value: Any) -> Any:
    """The value with its secrets replaced, in texts, mappings and lists, at any depth.

    >>> masked({"token": "hf_abc", "max_tokens": 5, "url": "http://me:pass@host/v1"})
    {'token': '***', 'max_tokens': 5, 'url': 'http://***@host/v1'}
    """
    return _masked(value, _known(), 0)


def _from_arguments() -> list[str]:
    """The secrets among arguments. The longest come first, because one may contain another."""
    return sorted(_KNOWN, key=len, reverse=True)


def _known() -> list[str]:
    """All known secrets, with those of the environment, the longest first."""
    names = [name for name in os.environ if is_secret(name) and name not in _FOLDERS]
    environment = filter(_is_telling, [os.environ.get(name, "") for name in names])
    return sorted({*_KNOWN, *environment}, key=len, reverse=True)


def _masked(value: Any, known: list[str], depth: int) -> Any:
    if isinstance(value, str):
        return _masked_text(value, known)
    if depth > DEEPEST:
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: _masked_item(key, inner, known, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner, known, depth + 1) for inner in value]
    if isinstance(value, tuple):
        return tuple(_masked(inner, known, depth + 1) for inner in value)
    return value


def _masked_item(key: Any, value: Any, known: list[str], depth: int) -> Any:
    if is_secret(key) and _has_content(value):
        return HIDDEN
    if key in _NAMES and isinstance(value, str):
        return _masked(value, _from_arguments(), depth)
    return _masked(value, known, depth)


def _has_content(value: Any) -> bool:
    """Whether there is anything to hide: ``token=True`` only means that there is a token."""
    return value is not None and not isinstance(value, bool)


def _masked_text(text: str, known: list[str]) -> str:
    for secret in known:
        text = text.replace(secret, HIDDEN)
    if "@" in text:
        text = _USER.sub(HIDDEN, text)
    if "=" in text:
        text = _PARAMETER.sub(_masked_parameter, text)
    return text


def _masked_parameter(match: re.Match[str]) -> str:
    name = match[1]
    hidden = is_secret(name) or name.lower() in _IN_QUERIES
    return f"{name}={HIDDEN if hidden else match[2]}"


def cleaned(error: _E) -> _E:
    """Remove secrets from an error's message, notes and attributes, and from its causes."""
    known = _known()
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        _clean(current, known)
        more = [current.__cause__, current.__context__]
        more += getattr(current, "failures", ())
        more += getattr(current, "exceptions", ())
        waiting += [other for other in more if isinstance(other, BaseException)]
    return error


def _clean(error: BaseException, known: list[str]) -> None:
    args = tuple(_masked(argument, known, 0) for argument in error.args)
    if args != error.args:
        error.args = args
    for name, value in vars(error).items():
        if not isinstance(value, str | list | dict):
            continue
        hidden = _masked(value, known, 0)
        if hidden != value:
            vars(error)[name] = hidden


def _hide_in(record: logging.LogRecord) -> bool:
    """A logging filter that replaces the secrets in a record and rejects no record."""
    message = record.getMessage()
    hidden = masked(message)
    if hidden != message:
        record.msg, record.args = hidden, ()
    if record.exc_info and record.exc_info[1] and not record.exc_text:
        lines = traceback.format_exception(record.exc_info[1])
        record.exc_text = masked("".join(lines)).rstrip("\n")
    return True
