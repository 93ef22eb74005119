"""How a stage computes: precision, quantisation, cache and threads, as a value and as text.

What a person may force, what calibration chooses, and what `status` shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.errors import UsageError

PRECISIONS = ("f32", "bf16")
GROUPS = (0, 32, 64, 128)
CACHE_PRECISIONS = ("f32", "bf16", "u8")

DEFAULT_GROUPS = {"f32": 128, "bf16": 32}
"""Measured at f32; at bf16 the CPU plugin's own (2026.4.1)."""

_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Configuration:
    """How a stage computes. As a text `f32/128/u8` or, with a limit of threads, `f32/128/u8/2`.

    Raises UsageError: a part that is not offered."""

    precision: str  # of the computation and of the ports between stages
    group: int  # of dynamic quantisation, in numbers; 0: none
    cache: str  # precision of keys and values; u8 has its keys quantised by token
    threads: int = 0  # 0: as many as the device likes

    def __post_init__(self) -> None:
        for what, value, offered in (
            ("precision", self.precision, PRECISIONS),
            ("quantisation group", self.group, GROUPS),
            ("cache precision", self.cache, CACHE_PRECISIONS),
        ):
            if value not in offered:
                raise UsageError(
                    f"A configuration's {what} cannot be '{value}'.",
                    f"Choose one of {', '.join(map(str, offered))}, as in f32/128/u8.",
                )
        if not 0 <= self.threads <= _MOST_THREADS:
            raise UsageError(
                f"A configuration cannot have {self.threads} threads.",
                f"Give 0 (all) to {_MOST_THREADS}.",
            )

    def __str__(self) -> str:
        text = f"{self.precision}/{self.group}/{self.cache}"
        return f"{text}/{self.threads}" if self.threads else text

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """From its text form. Raises UsageError."""
        parts = text.strip().lower().split("/")
        numbers = parts[1:2] + parts[3:]
        if len(parts) not in (3, 4) or not all(_is_number(part) for part in numbers):
            raise UsageError(
                f"'{text[:40]}' is no configuration.",
                "Write PRECISION/GROUP/CACHE or PRECISION/GROUP/CACHE/THREADS, as in f32/128/u8/2.",
            )
        return cls(parts[0], int(parts[1]), parts[2], *map(int, parts[3:]))


REFERENCE = Configuration("f32", 0, "f32")
"""What others are judged by, and how deterministic mode computes."""


def default_configuration(precision: str, threads: int = 0) -> Configuration:
    """What an uncalibrated stage has. Raises UsageError."""
    return Configuration(precision, DEFAULT_GROUPS.get(precision, 0), precision, threads)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5
