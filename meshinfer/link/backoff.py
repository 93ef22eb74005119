"""When to dial again. Pure: the caller brings the random number and the clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first_s` to `longest_s`, each wait spread by +-`spread` of itself.

    A refusal by trust waits `refused_s` at once: nothing gets better by asking often.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    refused_s: float = 60.0
    spread: float = 0.2

    def delay_s(self, failures: int, random: float, *, refused: bool = False) -> float:
        """Seconds to wait after `failures` failed attempts in a row (0: none, dial now).

        `random` is in [0, 1). The spread keeps PCs that lost the same peer from dialling in step.
        """
        if failures <= 0:
            return 0.0
        # The exponent is bounded: 2.0 ** 1024 overflows, and a PC may be gone for weeks.
        doubled = self.first_s * 2.0 ** min(failures - 1, 32)
        wait = self.refused_s if refused else min(self.longest_s, doubled)
        return wait * (1.0 + self.spread * (2.0 * random - 1.0))
