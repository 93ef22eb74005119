"""How far a long piece of work is. Made by the weights lane, shown by commands and the status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    phase: str  # for people: "download", "check", "convert", "describe", "split", ...
    done_bytes: int
    total_bytes: int  # 0: unknown


Tell = Callable[[Progress], None]
"""Called from the thread that works; must not block."""


def untold(progress: Progress) -> None:
    """For callers that do not look."""
