"""What weights will take, and where they will be, before they are loaded: room must be made first.

Knows configs and sizes; how loading is done is known by ``_loading``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._loading import _LOADED, Source, _config, _dtype, _resolved, _where
from ._placement import weights_of


def expected(source: Source) -> tuple[str | None, int, str | None]:
    """Before they are loaded: the device that these weights will be on, their bytes, and their mark if they are there.

    No device: they are spread over several.
    """
    found = _LOADED.get(source.key)
    if found is not None:
        return found.device, found.shelf.size, found.mark
    folder, gguf = _resolved(source)
    common: dict[str, Any] = {"revision": source.revision, "trust_remote_code": source.trust_remote_code}
    config = _config(folder, common | ({"gguf_file": gguf} if gguf else {}))
    dtype = _dtype(source.dtype, config, source.device)
    where = _where(source, config, dtype).get("device_map")
    place = where.get("") if isinstance(where, Mapping) and set(where) == {""} else where
    if place is None:
        device: str | None = source.device or "cpu"
    else:
        device = f"cuda:{place}" if isinstance(place, int) else place if isinstance(where, Mapping) else None
    return device, weights_of(config, dtype.itemsize), None
