"""Which names may become files. Names from other PCs, catalogues and people are checked here before
any of them meets a path."""

from __future__ import annotations

import re

LONGEST = 100
"""Characters. Windows allows 260 for a whole path, and store and digest take their share."""

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@ -]*", re.ASCII)
_RESERVED = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{port}{number}" for port in ("com", "lpt") for number in range(10)]
)
"""Names that Windows gives to devices, with any extension (Naming Files, Paths, and Namespaces)."""


def objection(name: str) -> str | None:
    """Why `name` is no plain file name on every system; None when it is one."""
    if not name or len(name) > LONGEST:
        return f"it has {len(name)} characters, 1 to {LONGEST} are allowed"
    if not _PLAIN.fullmatch(name):
        return "it holds characters other than letters, digits, spaces and . _ + @ -"
    if name.endswith((".", " ")):
        return "it ends in a dot or space"
    if is_device(name):
        return "Windows reserves it for a device"
    return None


def is_device(name: str) -> bool:
    """Whether Windows would open a device instead of a file of that name."""
    return name.split(".")[0].strip().lower() in _RESERVED
