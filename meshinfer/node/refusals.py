"""Who was not let in lately: for the log and `status`."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import replace

from meshinfer.core.fleet import Refusal

_KEPT = 32

log = logging.getLogger(__name__)


class RefusalBook:
    """The newest refusals, repeated ones counted; each kind is logged once, then every 100th."""

    def __init__(self) -> None:
        self._book: OrderedDict[tuple[str, str], Refusal] = OrderedDict()

    def note(self, refusal: Refusal) -> None:
        key = (refusal.address.rpartition(":")[0], refusal.reason)
        known = self._book.pop(key, None)
        counted = replace(refusal, count=known.count + 1 if known else 1)
        self._book[key] = counted
        if len(self._book) > _KEPT:
            self._book.popitem(last=False)
        if counted.count == 1 or counted.count % 100 == 0:
            log.warning("refused %s (%d): %s", refusal.address, counted.count, refusal.reason)

    def all(self) -> tuple[Refusal, ...]:
        """Oldest first."""
        return tuple(self._book.values())
