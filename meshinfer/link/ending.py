"""Why a link is over, and in which words: the same whatever carries it. The first reason stays.

Each link over a network has one; called on the event loop only.
"""

from __future__ import annotations

from meshinfer.core.ids import NodeId, short
from meshinfer.errors import PeerLost, ProtocolViolation


class Ending:
    """`address` is where the other side was reached, for people."""

    def __init__(self, channel: str, peer: NodeId, address: str) -> None:
        self._channel = channel
        self._who = f"PC {short(peer)} at {address}"
        self._why: str | None = None

    def check(self) -> None:
        """Raises PeerLost once the link is over."""
        if self._why is not None:
            raise PeerLost(self._why)

    def closed_here(self, reason: str) -> None:
        """This PC ends the link."""
        if self._why is None:
            self._why = f"This PC closed the link. {reason}".strip()

    def lost(self, detail: str) -> PeerLost:
        """The link is over; `detail` is what the other side or the system said."""
        if self._why is None:
            said = "".join(character for character in detail if character.isprintable())[:200]
            end = f": {said}" if said else "."
            self._why = f"The {self._channel} link with {self._who} ended{end}"
        return PeerLost(self._why)

    def violation(self, cause: str) -> ProtocolViolation:
        """What the other side did against the rules; the caller closes the link."""
        return ProtocolViolation(f"{self._who} broke the rules of {self._channel}: {cause}")
