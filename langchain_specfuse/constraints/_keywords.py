"""The words of JSON schemas: which type each belongs to, which say nothing about a value, which cannot be kept."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

OF_TYPE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "object": frozenset(
            [
                "properties",
                "required",
                "additionalProperties",
                "patternProperties",
                "propertyNames",
                "minProperties",
                "maxProperties",
                "unevaluatedProperties",
            ]
        ),
        "array": frozenset(
            ["items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"]
        ),
        "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
        "number": frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    }
)
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
ANYWHERE = frozenset(["type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "nullable"])
SILENT = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$schema",
        "$id",
        "$comment",
        "$anchor",
        "$defs",
        "definitions",
        "discriminator",
        "xml",
        "externalDocs",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
        "strict",
        "$dynamicAnchor",
    ]
)
"""They say nothing about which values are right; so do all that begin with ``x-``."""
NUMERIC_FORMATS = frozenset(["int32", "int64", "uint32", "uint64", "float", "double", "decimal"])
LOOSE_FORMATS = frozenset(
    [
        "password",
        "binary",
        "byte",
        "base64",
        "base64url",
        "path",
        "file-path",
        "directory-path",
        "json-string",
        "regex",
        "color",
        "text",
        "string",
        "multi-line",
        "html",
        "markdown",
    ]
)
"""Names for what a text is about, not for how it is written."""

_YEAR = "[1-9][0-9]{3}"
_LEAP = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_CLOCK = "(?:[0-9]{1,3}H(?:[0-9]{1,2}M)?(?:[0-9]{1,2}S)?|[0-9]{1,3}M(?:[0-9]{1,2}S)?|[0-9]{1,3}S)"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        *(f"(?:{_GROUP}:){{{left}}}(?::{_GROUP}){{1,{7 - left}}}" for left in range(1, 7)),
        f":(?::{_GROUP}){{1,7}}",
        f"(?:{_GROUP}:){{1,7}}:",
        "::",
    ]
)
_IPV4_NAMES = ("ipv4", "ipv4network", "ipv4interface", "ipvanyaddress", "ipvanynetwork", "ipvanyinterface")
_IPV6_NAMES = ("ipv6", "ipv6network", "ipv6interface")
"""As pydantic calls them: one address is a network, and has an interface."""
FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}T{_TIME}",
        "duration": f"P(?:[0-9]{{1,3}}W|[0-9]{{1,4}}D(?:T{_CLOCK})?|T{_CLOCK})",
        "email": rf"[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+){{0,4}}@{_LABEL}(?:\.{_LABEL}){{0,3}}\.[A-Za-z]{{2,12}}",
        "idn-email": rf"[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+){{0,4}}@{_LABEL}(?:\.{_LABEL}){{0,3}}\.[A-Za-z]{{2,12}}",
        "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,4}}",
        **dict.fromkeys(_IPV4_NAMES, rf"(?:{_BYTE}\.){{3}}{_BYTE}"),
        **dict.fromkeys(_IPV6_NAMES, f"(?:{_IPV6})"),
        "uuid": _UUID,
        "uri": r"https?://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,60}[A-Za-z0-9])?(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~/-]*)?"
        r"(?:\?[A-Za-z0-9._~=&-]*)?(?:#[A-Za-z0-9._~-]*)?",
    }
)
"""Stricter than the standards where those who read the value are: what every reader takes (a leap day only in leap
years, no second 60, web addresses only)."""
