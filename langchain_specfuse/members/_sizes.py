"""Bytes as people write them, and for people to read."""

from __future__ import annotations

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def bytes_of(told: int | str) -> int:
    """A number of bytes, told as one or with a unit.

    >>> bytes_of("6GB"), bytes_of("1.5 GiB"), bytes_of(1000)
    (6000000000, 1610612736, 1000)
    """
    if isinstance(told, int) and not isinstance(told, bool):
        found: float = told
    elif isinstance(told, str):
        text = told.strip().upper()
        number = text.rstrip("KMGTIB ")
        unit = text[len(number) :].strip()
        try:
            found = float(number) * UNITS[unit]
        except (ValueError, KeyError):
            raise ValueError(f"{told!r} is no number of bytes") from None
    else:
        raise ValueError(f"{told!r} is no number of bytes")
    if not 1 <= found < 2**63:
        raise ValueError(f"{told!r} is no number of bytes")
    return int(found)


def shown(size: int) -> str:
    """Bytes for people.

    >>> shown(1_072_419_256), shown(512), shown(6_000_000)
    ('1.07 GB', '512 bytes', '6 MB')
    """
    for unit in ("GB", "MB", "KB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:.3g} {unit}"
    return f"{size} bytes"
