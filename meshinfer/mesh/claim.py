"""Of whose leadership a PC may speak: of its own when it asks, of the asker's when it answers."""

from __future__ import annotations

from meshinfer.core.ids import Epoch, NodeId
from meshinfer.errors import ProtocolViolation
from meshinfer.wire.election import Campaign, Deny, Grant, Renew, Resign

ElectionMessage = Campaign | Renew | Grant | Deny | Resign


def claimed_epoch(message: ElectionMessage, me: NodeId, sender: NodeId) -> Epoch:
    """The epoch that `message` to `me` is about. Raises ProtocolViolation for another PC's."""
    is_answer = isinstance(message, Grant | Deny)
    claimed = message.asked if isinstance(message, Deny) else message.epoch
    if claimed.leader != (me if is_answer else sender):
        raise ProtocolViolation("a PC spoke of another PC's leadership as its own")
    return claimed
