"""Every PC is a door: a follower hands a request to the leader over its link and relays the answer.

`ForwardDoor` is the follower's side, `ForwardDesk` the leader's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from meshinfer.core.ids import NodeId, RequestId
from meshinfer.core.request import Delta, Event, Finished, GenerationRequest, Started
from meshinfer.errors import (
    InvalidRequest,
    MeshInferError,
    PeerLost,
    from_code,
)
from meshinfer.wire.forward import (
    Ask,
    AskCancel,
    AskDelta,
    AskFailed,
    AskFinished,
    AskStarted,
)

log = logging.getLogger(__name__)

Answer = AskStarted | AskDelta | AskFinished | AskFailed
Generate = Callable[[GenerationRequest], AsyncGenerator[Event, None]]


class Sender(Protocol):
    async def send(self, node: NodeId, message: object) -> None: ...


class ForwardDoor:
    """Requests on their way to a leader, each with the queue of what came back."""

    def __init__(self, mesh: Sender) -> None:
        self._mesh = mesh
        self._asked: dict[RequestId, tuple[NodeId, asyncio.Queue[Answer]]] = {}

    async def generate(
        self, leader: NodeId, request: GenerationRequest
    ) -> AsyncGenerator[Event, None]:
        """The leader's events. Closing the iterator cancels the request there.

        Raises PeerLost when the leader goes, else the leader's own error.
        """
        answers: asyncio.Queue[Answer] = asyncio.Queue()
        self._asked[request.id] = (leader, answers)
        unfinished = request.choices
        try:
            await self._mesh.send(leader, Ask(request))
            while unfinished:
                answer = await answers.get()
                if isinstance(answer, AskFailed):
                    unfinished = 0
                    raise _error(answer)
                unfinished -= isinstance(answer, AskFinished)
                yield answer.event
        finally:
            del self._asked[request.id]
            if unfinished:
                with contextlib.suppress(PeerLost):
                    await self._mesh.send(leader, AskCancel(request.id))

    def take(self, sender: NodeId, answer: Answer) -> None:
        """Handler of the mesh: an answer counts only from the PC that was asked."""
        asked = self._asked.get(answer.id)
        if asked is not None and asked[0] == sender:
            asked[1].put_nowait(answer)

    def lost(self, node: NodeId) -> None:
        """A leader is gone: end what it was asked."""
        for request, (leader, answers) in self._asked.items():
            if leader == node:
                answers.put_nowait(
                    AskFailed(request, PeerLost.code, "The leading PC is gone.", "Ask again.", None)
                )


class ForwardDesk:
    """Answers for others. `generate` is this PC's own door."""

    def __init__(self, mesh: Sender, generate: Generate) -> None:
        self._mesh = mesh
        self._generate = generate
        self._answering: dict[tuple[NodeId, RequestId], asyncio.Task[None]] = {}

    def ask(self, sender: NodeId, message: Ask) -> None:
        """Handler of the mesh: start answering."""
        place = (sender, message.request.id)
        if place in self._answering:
            return
        task = asyncio.create_task(self._answer(sender, message.request))
        self._answering[place] = task
        task.add_done_callback(lambda _: self._answering.pop(place, None))

    def cancel(self, sender: NodeId, message: AskCancel) -> None:
        """Handler of the mesh: the client is gone."""
        task = self._answering.get((sender, message.id))
        if task is not None:
            task.cancel()

    def lost(self, node: NodeId) -> None:
        """A follower is gone: nobody waits for its answers."""
        for (sender, _), task in self._answering.items():
            if sender == node:
                task.cancel()

    async def close(self) -> None:
        """Cancel and await all answers."""
        tasks = list(self._answering.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _answer(self, asker: NodeId, request: GenerationRequest) -> None:
        try:
            async with contextlib.aclosing(self._generate(request)) as events:
                async for event in events:
                    await self._mesh.send(asker, _wrapped(request.id, event))
        except MeshInferError as error:
            await self._tell(asker, request.id, error)
        except Exception:
            # outermost frame of the task: a bug here must end this request, not the agent
            log.exception("a forwarded request failed")
            await self._tell(asker, request.id, MeshInferError("An internal error."))

    async def _tell(self, asker: NodeId, request: RequestId, error: MeshInferError) -> None:
        param = error.param if isinstance(error, InvalidRequest) else None
        with contextlib.suppress(PeerLost):
            await self._mesh.send(
                asker,
                AskFailed(
                    request, error.code, error.cause, error.remedy, param, error.retry_after_s
                ),
            )


def _wrapped(request: RequestId, event: Event) -> Answer:
    match event:
        case Started():
            return AskStarted(request, event)
        case Delta():
            return AskDelta(request, event)
        case Finished():
            return AskFinished(request, event)


def _error(failed: AskFailed) -> MeshInferError:
    error = from_code(failed.code, failed.cause, failed.remedy)
    error.retry_after_s = failed.retry_after_s
    if isinstance(error, InvalidRequest):
        error.param = failed.param
    return error
