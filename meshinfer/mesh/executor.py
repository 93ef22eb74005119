"""Obeys the instructions of the pure parts: sends on the right link, closes, persists, redials.

Made by the runner, which gives it the open links and what needs more than a link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshinfer.core.ids import Epoch, NodeId
from meshinfer.mesh.instructions import CloseLink, Instruction, Persist, Post, Redial, Send
from meshinfer.mesh.peer_link import PeerLink
from meshinfer.wire.membership import Superseded


class Executor:
    """`links` is the runner's own table by number; `primary` names the link of a PC in use."""

    def __init__(
        self,
        links: dict[int, PeerLink],
        primary: Callable[[NodeId], int | None],
        persist: Callable[[Epoch], None],
        redial: Callable[[NodeId], None],
    ) -> None:
        self._links = links
        self._primary = primary
        self._persist = persist
        self._redial = redial

    def do(self, instructions: Iterable[Instruction]) -> None:
        """In order. What has no link any more is not sent."""
        for step in instructions:
            match step:
                case Persist(epoch):
                    self._persist(epoch)
                case Send(node, message):
                    number = self._primary(node)
                    if number is not None:
                        self._post(number, message)
                case Post(number, message):
                    self._post(number, message)
                case CloseLink(number, reason):
                    if number in self._links:
                        self._links[number].finish(reason)
                case Redial(node):
                    self._redial(node)

    def _post(self, number: int, message: object) -> None:
        link = self._links.get(number)
        if link is None:
            return
        if isinstance(message, Superseded):
            link.outbox.seal(message)
        else:
            link.outbox.post(message)
