"""How often each PC broke a rule: counted always, logged the first time and every hundredth."""

from __future__ import annotations

import logging
from collections import Counter

from meshinfer.core.ids import NodeId, short

log = logging.getLogger(__name__)


class ViolationBook:
    def __init__(self) -> None:
        self._counts: Counter[NodeId] = Counter()

    def note(self, node: NodeId, cause: str) -> None:
        self._counts[node] += 1
        times = self._counts[node]
        if times == 1 or times % 100 == 0:
            log.warning("%s broke a rule (%d): %s", short(node), times, cause)

    def counts(self) -> dict[NodeId, int]:
        return dict(self._counts)
