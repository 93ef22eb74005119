"""How fast this PC sends pieces: `--upload-limit`, shared by all who pull from it.

The bucket is pure and takes the time; `UploadLimit` makes the serving links of an agent wait for
it, one piece of each in turn.
"""

from __future__ import annotations

import asyncio

BURST_S = 0.1
"""What a sender that was held up may make good: a timer of Windows is 16 ms late."""


class TokenBucket:
    """Bytes that may be sent, filling at `rate` bytes a second. A piece may be sent while nothing
    is owed, and is owed then: so a piece larger than the bucket passes, and the rate still holds.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._level = 0.0
        self._at: float | None = None

    def wait_s(self, now: float) -> float:
        """Seconds until the next piece may be sent."""
        self._fill(now)
        return max(0.0, -self._level / self._rate)

    def take(self, size: int, now: float) -> None:
        """So many bytes are sent from now on."""
        self._fill(now)
        self._level -= size

    def _fill(self, now: float) -> None:
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._level = min(self._rate * BURST_S, self._level + passed * self._rate)
        self._at = now


class UploadLimit:
    """`rate` in bytes of payload a second; None does not limit."""

    def __init__(self, rate: int | None = None) -> None:
        self._bucket = TokenBucket(rate) if rate is not None else None
        # Who waits is let in first come, first served, and each link waits for one piece at a time:
        # that is a piece of each in turn.
        self._turn = asyncio.Lock()

    async def turn(self, size: int) -> None:
        """Until a piece of `size` bytes may be sent."""
        if self._bucket is None:
            return
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._bucket.wait_s(loop.time()))
            self._bucket.take(size, loop.time())
