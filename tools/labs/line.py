"""One way from one PC to another: when what is sent now arrives, or that it never does. Pure.

Time is an argument and so is chance: the same seed loses the same frames.
"""

from __future__ import annotations

import random

from tools.labs.quality import LinkQuality

ENDLESS = float("inf")


class Line:
    """A wire that sends byte after byte at its rate and then takes its delay.

    `quality` may change at any time; it holds for what is sent from then on. `backlog_s`: what
    would have to wait longer than this to be sent is dropped, as a switch with full buffers does.
    """

    def __init__(
        self, quality: LinkQuality, chance: random.Random, backlog_s: float = ENDLESS
    ) -> None:
        self.quality = quality
        self._chance = chance
        self._backlog_s = backlog_s
        self._free_at = 0.0  # when all of what was sent before has left
        self._latest = 0.0  # when the last of it arrives: nothing overtakes it

    def arrival(self, now: float, size: int) -> float | None:
        """When `size` bytes that are sent at `now` are there (seconds); None: never."""
        quality = self.quality
        if quality.cut or (quality.loss and self._chance.uniform(0, 100) < quality.loss):
            return None
        leaves = now
        if quality.rate_mbit:
            leaves = max(now, self._free_at)
            if leaves - now > self._backlog_s:
                return None
            leaves += size * 8 / (quality.rate_mbit * 1e6)
            self._free_at = leaves
        delay_ms = quality.delay_ms
        if quality.jitter_ms:
            delay_ms += self._chance.uniform(-quality.jitter_ms, quality.jitter_ms)
        self._latest = max(self._latest, leaves + max(0.0, delay_ms) / 1000)
        return self._latest


class Lines:
    """The lines between all PCs, made when they are first used. PCs are numbered from 1."""

    def __init__(self, usual: LinkQuality, seed: int, backlog_s: float = ENDLESS) -> None:
        self._usual = usual
        self._seed = seed
        self._backlog_s = backlog_s
        self._lines: dict[tuple[int, int], Line] = {}

    def line(self, source: int, target: int) -> Line:
        """A PC that talks to itself uses no network."""
        pair = (source, target)
        if pair not in self._lines:
            quality = LinkQuality() if source == target else self._usual
            chance = random.Random(f"{self._seed}/{source}/{target}")
            self._lines[pair] = Line(quality, chance, self._backlog_s)
        return self._lines[pair]
