"""A plan at work on its leader: scheduler, ring, decode loop and inbox, for as long as it lasts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from meshinfer.core.ids import ModelId, RequestId
from meshinfer.core.plan import Plan
from meshinfer.core.request import GREEDY, ChatMessage, Event, GenerationRequest
from meshinfer.errors import MeshInferError, TimedOut
from meshinfer.serve.decode_loop import DecodeLoop
from meshinfer.serve.inbox import Encoder, Inbox, Language
from meshinfer.serve.ring import LeaderRing
from meshinfer.serve.scheduler import Scheduler, SchedulerLimits
from meshinfer.serve.statistics import RingStatistics
from meshinfer.serve.step_cost import StepCost

BLOCK_TOKENS = {"CPU": 32, "GPU": 256}
"""Largest cache block of the engine on each kind of device (facts, openvino 2)."""


class Serving:
    """`run` drives it; `generate` may be called meanwhile."""

    def __init__(
        self,
        plan: Plan,
        ring: LeaderRing,
        encoder: Encoder,
        language: Language,
        clock: Callable[[], float],
    ) -> None:
        stages = plan.pipelines[0].stages
        self._model: ModelId = plan.model
        cost = StepCost(len(stages))
        self._scheduler = Scheduler(
            SchedulerLimits(
                cache_tokens=plan.cache_tokens,
                block_size=max(BLOCK_TOKENS.get(one.device.split(".")[0], 256) for one in stages),
            ),
            cost,
        )
        self._statistics = RingStatistics(len(stages), clock)
        self._loop = DecodeLoop(self._scheduler, ring, (cost.take, self._statistics.record))
        self._inbox = Inbox(encoder, language, self._scheduler, self._loop.wake, clock)

    async def run(self) -> None:
        """Until the ring breaks. Raises PeerLost or ProtocolViolation; requests end with it."""
        await self._loop.run(self._inbox)

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        return self._inbox.generate(request)

    def close(self, error: MeshInferError) -> None:
        """End all requests with `error`. Idempotent."""
        self._inbox.close(error)

    async def warm_up(self, patience_s: float = 60.0) -> None:
        """One token through everything that a request meets. Raises TimedOut or its error."""
        request = GenerationRequest(
            id=RequestId("warm-up"),
            model=self._model,
            messages=(ChatMessage("user", "Hello"),),
            prompt=None,
            sampling=GREEDY,
            max_tokens=1,
        )
        try:
            async with (
                asyncio.timeout(patience_s),
                contextlib.aclosing(self._inbox.generate(request)) as events,
            ):
                async for _ in events:
                    pass
        except TimeoutError as error:
            raise TimedOut(f"No token came through the ring in {patience_s:.0f} s.") from error

    def document(self) -> dict[str, Any]:
        """The `serving` part of the status."""
        speed = self._statistics.speed()
        return {
            "running": self._scheduler.running,
            "waiting": self._scheduler.waiting,
            "tokens_per_s": round(speed.tokens_per_s, 2),
            "acceptance": None,
            "cache_used": round(self._scheduler.cache_used, 4),
            "cache_kept": round(self._scheduler.cache_kept, 4),
            "tokens": speed.tokens,
            "steps": speed.steps,
            "wire_ms": round(speed.wire_ms, 3),
            "stages": [
                {
                    "compute_ms": round(one.compute_ms, 3),
                    "wait_ms": round(one.wait_ms, 3),
                    "queue_ms": round(one.queue_ms, 3),
                    "handle_ms": round(one.handle_ms, 3),
                }
                for one in speed.stages
            ],
        }
