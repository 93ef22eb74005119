"""Schedule, run, commit: the loop of a serving plan on its leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from meshinfer.core.together import together
from meshinfer.errors import MeshInferError, ProtocolViolation, TimedOut
from meshinfer.serve.inbox import Inbox
from meshinfer.serve.ring import LeaderRing, StepOutcome
from meshinfer.serve.scheduler import Advance, Scheduler

STEP_PATIENCE_S = 60.0
"""For one step through all stages. A prompt chunk of a large model on slow PCs takes seconds."""

RENEW_S = 60.0
"""How often all stages are told what lives: well within the lease of `serve.stage_memory`."""

Observe = Callable[[StepOutcome], None]


class DecodeLoop:
    """Keeps as many steps in flight as the scheduler has. `observers` learn of every step,
    `after_sending` is called whenever steps went out or none could."""

    def __init__(
        self,
        scheduler: Scheduler,
        ring: LeaderRing,
        observers: tuple[Observe, ...],
        patience_s: float = STEP_PATIENCE_S,
        after_sending: Callable[[], None] = lambda: None,
    ) -> None:
        self._after_sending = after_sending
        self._patience_s = patience_s
        self._scheduler = scheduler
        self._ring = ring
        self._observers = observers
        self._work = asyncio.Event()
        self._renewal_is_due = False

    def wake(self) -> None:
        """There may be a new step to make."""
        self._work.set()

    async def run(self, inbox: Inbox) -> None:
        """Until the ring breaks: then every request is ended with the error, which is raised."""
        try:
            await self._agree()
            await together(
                self._send_steps(inbox),
                self._take_outcomes(inbox),
                self._watch_ring(),
                self._renew(),
            )
        except MeshInferError as error:
            inbox.close(error)
            raise

    async def _agree(self) -> None:
        """Take over what all stages still hold, and have them forget the rest."""
        try:
            async with asyncio.timeout(self._patience_s):
                held = await self._ring.census()
        except TimeoutError:
            raise self._hanging() from None
        self._scheduler.inherit([(one.sequence, one.tokens.tolist()) for one in held])
        await self._ring.keep(self._scheduler.renew())

    async def _send_steps(self, inbox: Inbox) -> None:
        while True:
            await self._until_work()
            self._work.clear()
            if self._renewal_is_due:
                self._renewal_is_due = False
                await self._ring.keep(self._scheduler.renew())
            while (step := self._scheduler.next_step()) is not None:
                await self._ring.send(step)
            for sequence, error in self._scheduler.take_failed():
                inbox.fail([sequence], error)
            self._after_sending()

    async def _until_work(self) -> None:
        """A step that is held back for drafts goes out without them when they are late."""
        try:
            async with asyncio.timeout(self._scheduler.held_s()):
                await self._work.wait()
        except TimeoutError:
            pass

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            self._renewal_is_due = True
            self.wake()

    async def _watch_ring(self) -> None:
        """A stage whose device hangs keeps its links; only the missing answer shows it."""
        while True:
            await asyncio.sleep(self._patience_s / 8)
            if self._ring.waiting_s() > self._patience_s:
                raise self._hanging()

    def _hanging(self) -> TimedOut:
        return TimedOut(
            f"No stage answered for {self._patience_s:g} s: a device may hang.", "Ask again."
        )

    async def _take_outcomes(self, inbox: Inbox) -> None:
        while True:
            outcome = await self._ring.receive()
            advances = self._commit(outcome, inbox)
            # The next step goes out before anybody is told of this one: the stages wait.
            self.wake()
            await asyncio.sleep(0)
            inbox.publish(advances)
            if outcome.error is None:
                for observe in self._observers:
                    observe(outcome)

    def _commit(self, outcome: StepOutcome, inbox: Inbox) -> list[Advance]:
        if outcome.lost:
            self._scheduler.recompute(outcome.step, outcome.lost)
            return []
        if outcome.error is not None:
            inbox.fail(self._scheduler.fail(outcome.step), outcome.error)
            return []
        expected = self._scheduler.expects(outcome.step)
        if len(outcome.drawn) != expected:
            raise ProtocolViolation(f"{len(outcome.drawn)} tokens came back for {expected} rows")
        return self._scheduler.commit(outcome.step, outcome.drawn)
