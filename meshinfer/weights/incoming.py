"""What this PC is getting just now, so that whoever pulls from it can be told: a piece that is on
its way here need not be fetched from far by everybody.

Written by pulls, read by the serving links of the same agent; lives on their event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto

from meshinfer.core.ids import Digest


class Change(Enum):
    ASKED = auto()  # of a PC that holds it
    DROPPED = auto()  # it did not come
    STORED = auto()  # it is here
    LOST = auto()  # it was here, and is not right any more
    PULLS = auto()  # a pull began or ended; the digest is empty


Listener = Callable[[Change, Digest], None]
_NONE = Digest("")


class Incoming:
    def __init__(self) -> None:
        self._coming: set[Digest] = set()
        self._pulled: Counter[Digest] = Counter()
        self._listeners: list[Listener] = []

    @property
    def coming(self) -> frozenset[Digest]:
        return frozenset(self._coming)

    def grows(self, pieces: Collection[Digest]) -> bool:
        """Whether a pull of this PC wants any of these."""
        return not self._pulled.keys().isdisjoint(pieces)

    @contextmanager
    def pulling(self, pieces: Iterable[Digest]) -> Iterator[None]:
        """While a pull wants these."""
        pulled = Counter(pieces)
        self._pulled.update(pulled)
        self._tell(Change.PULLS, _NONE)
        try:
            yield
        finally:
            self._pulled -= pulled
            for digest in pulled.keys() & self._coming:
                self.dropped(digest)
            self._tell(Change.PULLS, _NONE)

    @contextmanager
    def watch(self, listener: Listener) -> Iterator[None]:
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def asked(self, digest: Digest) -> None:
        self._coming.add(digest)
        self._tell(Change.ASKED, digest)

    def dropped(self, digest: Digest) -> None:
        self._coming.discard(digest)
        self._tell(Change.DROPPED, digest)

    def stored(self, digest: Digest) -> None:
        self._coming.discard(digest)
        self._tell(Change.STORED, digest)

    def lost(self, digest: Digest) -> None:
        self._tell(Change.LOST, digest)

    def _tell(self, change: Change, digest: Digest) -> None:
        for listener in list(self._listeners):
            listener(change, digest)
