"""An Ethernet switch in user space between network namespaces: a LAN as good or bad as wanted.

Where the kernel has no netem this does the same: delay, jitter, rate, loss and one-way cuts for
each ordered pair of PCs. Multicast works, and frames of one line keep their order.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict, deque

from tools.labs import namespaces
from tools.labs.inside import open_way
from tools.labs.learning import LearningSwitch
from tools.labs.line import Lines
from tools.labs.namespaces import Namespace
from tools.labs.quality import LinkQuality

LARGEST_FRAME = 1 << 16
FRAMES_A_TURN = 64
"""Of one card before the others have their turn."""

BACKLOG_S = 0.2
"""What a switch keeps for a slow line; more is dropped, which is how TCP learns its rate."""


class SwitchNetwork:
    """`apis`: PC -> port of its API, which is reached through 127.0.0.1 of this machine."""

    def __init__(self, lines: Lines, apis: dict[int, int]) -> None:
        self._lines = lines
        self._apis = apis
        self._namespaces: dict[int, Namespace] = {}
        self._switch = LearningSwitch(apis)
        self._travelling: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
        self._ways: list[asyncio.Server] = []

    async def start(self) -> None:
        """Raises UsageError where it cannot be; what was made by then is removed by `close`."""
        namespaces.check()
        loop = asyncio.get_running_loop()
        for pc, port in self._apis.items():
            made = self._namespaces[pc] = Namespace(pc)
            loop.add_reader(made.card, self._read, pc)
            self._ways.append(await open_way(made.name, port))

    async def close(self) -> None:
        for way in self._ways:
            way.close()
        for one in self._namespaces.values():
            asyncio.get_running_loop().remove_reader(one.card)
            one.remove()

    def set(self, source: int, target: int, quality: LinkQuality) -> None:
        self._lines.line(source, target).quality = quality

    @property
    def names(self) -> dict[int, str]:
        """PC -> namespace in which its agent belongs."""
        return {pc: one.name for pc, one in self._namespaces.items()}

    def _read(self, source: int) -> None:
        for _ in range(FRAMES_A_TURN):
            try:
                frame = os.read(self._namespaces[source].card, LARGEST_FRAME)
            except (BlockingIOError, OSError):
                return
            for target in self._switch.ways(source, frame):
                self._send(source, target, frame)

    def _send(self, source: int, target: int, frame: bytes) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = self._lines.line(source, target).arrival(now, len(frame))
        if due is None:
            return
        self._travelling[source, target].append(frame)
        if due <= now and len(self._travelling[source, target]) == 1:
            self._deliver(source, target)
        else:
            loop.call_at(due, self._deliver, source, target)

    def _deliver(self, source: int, target: int) -> None:
        """The oldest of this line: timers that are due together fire in any order."""
        frame = self._travelling[source, target].popleft()
        card = self._namespaces[target].card
        try:
            os.write(card, frame)
        except OSError:  # its queue is full, or the card is gone: lost, as on any Ethernet
            return
