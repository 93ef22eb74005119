"""How long a pull bears with a PC that is slow, silent or wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """When a source is asked again, and when it is not."""

    window: int = 8  # pieces in flight on a link at most: 8 MiB hide the way there and back
    writes: int = 4  # pieces that wait for the disk before the next is received
    stall_s: float = 15.0  # without a message (a server says every few seconds that it lives)
    piece_s: float = 120.0  # without a piece, of those that were asked for
    wrong_answers: int = 3
    failures: int = 6  # in a row, without a piece between them
    first_wait_s: float = 0.5
    longest_wait_s: float = 8.0

    def wait_s(self, failures: int) -> float:
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(failures - 1, 16))
