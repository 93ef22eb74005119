"""Plain text tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart, heads in the first line."""
    widths = [
        max(len(head), *(len(row[column]) for row in rows)) if rows else len(head)
        for column, head in enumerate(heads)
    ]
    lines = [heads, *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
