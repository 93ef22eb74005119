"""Byte quantities as people write and read them."""

from __future__ import annotations

import re

from meshinfer.errors import UsageError

_SCALE = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "kib": 2**10,
    "m": 10**6, "mb": 10**6, "mib": 2**20,
    "g": 10**9, "gb": 10**9, "gib": 2**30,
    "t": 10**12, "tb": 10**12, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes that `text` names, e.g. `6GB`, `512MiB`, `1.5 g`. Raises UsageError."""
    match = _SIZE.fullmatch(text)
    scale = _SCALE.get(match[2].lower()) if match else None
    if match is None or scale is None:
        raise UsageError(f"'{text}' is not a size.", "Write for example 6GB or 512MiB.")
    return int(float(match[1]) * scale)


def format_bytes(count: int) -> str:
    """Decimal units, three digits: `98.4 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
