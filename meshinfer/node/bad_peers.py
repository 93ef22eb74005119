"""PCs that sent other bytes than those of a stage's manifest: for the log and `status`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from meshinfer.core.ids import NodeId, short

log = logging.getLogger(__name__)


class BadPeers:
    """`now` is this PC's clock, in seconds since 1970."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._noted: dict[NodeId, tuple[int, float]] = {}

    def note(self, node: NodeId, why: str) -> None:
        """A PC sent a wrong piece. What it sent was not used."""
        count, _ = self._noted.get(node, (0, 0.0))
        self._noted[node] = (count + 1, self._now())
        log.warning("PC %s sent a wrong piece of a stage: %s", short(node), why)

    def hints(self) -> list[str]:
        """A sentence for each of them."""
        return [
            f"PC {short(node)} sent {count} wrong pieces of stages, the last at "
            f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC: have its disk and memory "
            "checked. They were fetched from elsewhere."
            for node, (count, at) in sorted(self._noted.items())
        ]
