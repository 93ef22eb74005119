"""Messages of other conversations: from the links to whoever asked for them, in order per PC.

A slow handler holds up only messages of the PC whose message it handles. The task of a PC's inbox
lives while there is something in it.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from meshinfer.core.ids import NodeId, short
from meshinfer.errors import MeshInferError, ProtocolViolation
from meshinfer.mesh.owned_tasks import OwnedTasks

MOST_WAITING = 2048  # messages of one PC; a busy fleet has a few dozen

Handler = Callable[[NodeId, Any, memoryview], None | Awaitable[None]]

log = logging.getLogger(__name__)


class Switchboard:
    """`blame` hears of PCs whose message broke a rule that only the handler knows."""

    def __init__(self, tasks: OwnedTasks, blame: Callable[[NodeId, str], None]) -> None:
        self._tasks = tasks
        self._blame = blame
        self._handlers: dict[type, Handler] = {}
        self._inboxes: dict[NodeId, deque[tuple[Any, memoryview]]] = {}

    def route(self, kind: type, handler: Handler) -> None:
        """Hand messages of `kind` to `handler(sender, message, payload)`; one handler a kind."""
        if kind in self._handlers:
            raise ValueError(f"{kind.__name__} has a handler already")
        self._handlers[kind] = handler

    def deliver(self, sender: NodeId, message: object, payload: memoryview) -> None:
        """Queue it. Kinds that nobody asked for are dropped.

        Raises ProtocolViolation when `sender` is far ahead of its handlers. Reading no further
        instead would leave its heartbeats unread, and take a busy PC for a dead one (case N08).
        """
        if type(message) not in self._handlers:
            log.debug("nobody handles %s from %s", type(message).__name__, short(sender))
            return
        inbox = self._inboxes.get(sender)
        if inbox is None:
            inbox = self._inboxes[sender] = deque()
            inbox.append((message, payload))
            self._tasks.start(self._work_off(sender, inbox))
        elif len(inbox) < MOST_WAITING:
            inbox.append((message, payload))
        else:
            raise ProtocolViolation(f"{MOST_WAITING} of its messages wait to be handled")

    async def _work_off(self, sender: NodeId, inbox: deque[tuple[Any, memoryview]]) -> None:
        while inbox:
            message, payload = inbox[0]
            await self._handle(sender, message, payload)
            inbox.popleft()
        del self._inboxes[sender]

    async def _handle(self, sender: NodeId, message: object, payload: memoryview) -> None:
        name = type(message).__name__
        try:
            result = self._handlers[type(message)](sender, message, payload)
            if inspect.isawaitable(result):
                await result
        except ProtocolViolation as error:
            self._blame(sender, f"{name}: {error.cause}")
        except MeshInferError as error:
            log.info("%s from %s: %s", name, short(sender), error)
        except Exception:  # outermost frame of this message: a peer must not end the agent
            log.exception("handling %s from %s failed", name, short(sender))
            self._blame(sender, f"{name} made a handler fail")
