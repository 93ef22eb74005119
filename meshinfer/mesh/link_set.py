"""The links of one pair of PCs: which one is used, and how several become one. Pure.

Both PCs may dial at the same moment, and a PC may be found twice (mDNS and `--peer`). Both sides
keep the same link: the one dialled by the smaller node id, then the one with the smaller number
that its dialler drew. Until the other side is known to use it too (its heartbeat came over it), the
old link stays in use; then each side says Superseded on the old one and closes it when it has
heard the same. So there is no moment without a link, and no message is lost or overtaken.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshinfer.core.ids import NodeId
from meshinfer.mesh.instructions import CloseLink, Instruction, Post
from meshinfer.wire.membership import Superseded

_SENT_KEPT = 16


@dataclass(slots=True)
class LinkRecord:
    """One link and what was heard over it."""

    number: int  # this PC's own name of the link
    preference: tuple[NodeId, int]  # dialler, number that it drew; the smallest is kept
    heard_at: float
    confirmed_at: float  # when the newest heartbeat that the other side has seen was sent
    confirmed: bool = False  # a heartbeat came: the other side uses the link
    sequence: int = 0  # of the newest heartbeat sent
    seen: int = 0  # newest sequence received
    beat_at: float = -1e9  # when the newest heartbeat was sent
    ending_since: float | None = None  # Superseded was sent
    ended_by_peer: bool = False
    _sent: dict[int, float] = field(default_factory=dict)

    def beat(self, now: float) -> int:
        """The sequence of a heartbeat that is sent now."""
        self.sequence += 1
        self.beat_at = now
        self._sent[self.sequence] = now
        self._sent.pop(self.sequence - _SENT_KEPT, None)
        return self.sequence

    def heard(self, sequence: int, seen: int, now: float) -> None:
        """A heartbeat came."""
        self.confirmed = True
        self.heard_at = now
        self.seen = max(self.seen, sequence)
        self.confirmed_at = max(self.confirmed_at, self._sent.get(seen, self.confirmed_at))

    def silence_s(self, now: float, heartbeat_s: float) -> float:
        """How long this direction or the other has been silent.

        What the other side has seen shows only in its next heartbeat, so that direction may be
        one interval older without meaning anything.
        """
        return max(now - self.heard_at, now - self.confirmed_at - heartbeat_s)


class LinkSet:
    """Links of one PC in one incarnation."""

    def __init__(self) -> None:
        self._links: dict[int, LinkRecord] = {}
        self._primary: int | None = None

    def __bool__(self) -> bool:
        return bool(self._links)

    def all(self) -> list[LinkRecord]:
        return list(self._links.values())

    def get(self, number: int) -> LinkRecord | None:
        return self._links.get(number)

    @property
    def primary(self) -> int | None:
        """What is sent to the PC goes here."""
        return self._primary

    def add(self, link: LinkRecord) -> None:
        self._links[link.number] = link
        if self._primary is None:
            self._primary = link.number

    def remove(self, number: int) -> None:
        self._links.pop(number, None)
        if self._primary == number:
            rest = sorted(self._links.values(), key=lambda link: link.preference)
            self._primary = rest[0].number if rest else None

    def silence_s(self, now: float, heartbeat_s: float) -> float:
        """Of the link that is heard best."""
        return min(link.silence_s(now, heartbeat_s) for link in self._links.values())

    def must_wait(self, number: int) -> bool:
        """Whether messages on this link may be younger than some still to come on another."""
        own = self._links.get(number)
        return own is not None and any(
            link.preference > own.preference and not link.ended_by_peer
            for link in self._links.values()
        )

    def unify(self, now: float, silent_s: float, patience_s: float) -> list[Instruction]:
        """Move to the preferred link, and end the others. `silent_s`: no longer worth keeping."""
        if len(self._links) < 2:
            return []
        fresh = [
            link
            for link in self._links.values()
            if link.confirmed and not link.ended_by_peer and now - link.heard_at < silent_s
        ]
        if not fresh:
            return []
        chosen = min(fresh, key=lambda link: link.preference)
        used = self._links[self._primary] if self._primary is not None else chosen
        if used.preference < chosen.preference and now - used.heard_at < silent_s:
            return []  # only ever to a better one, or messages could overtake each other
        self._primary = chosen.number
        # A better link that was not heard yet may be in use on the other side already: it stays.
        others = [
            link
            for link in self._links.values()
            if link.preference > chosen.preference
            or link.ended_by_peer
            or now - link.heard_at >= silent_s
        ]
        return [step for link in others for step in self._end(link, now, patience_s)]

    def _end(self, link: LinkRecord, now: float, patience_s: float) -> list[Instruction]:
        if link.ending_since is None:
            link.ending_since = now
            said: list[Instruction] = [Post(link.number, Superseded())]
            return said + self._end(link, now, patience_s)
        if link.ended_by_peer or now - link.ending_since >= patience_s:
            self.remove(link.number)
            return [CloseLink(link.number, "another link joins the two PCs")]
        return []
