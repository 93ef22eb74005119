"""The HTTP server of one agent: routes and lifecycle. Started and closed by node.

A Door and a source of the status document go in; nothing else of the agent is known here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import time
from collections.abc import Callable

from aiohttp import web

from meshinfer.api.absent import PATHS, absent
from meshinfer.api.chat import chat_handler
from meshinfer.api.completions import completion_handler
from meshinfer.api.desk import AnswerDesk
from meshinfer.api.drawing import Chance
from meshinfer.api.errors import in_envelope
from meshinfer.api.exposition import Metrics
from meshinfer.api.guard import Guard, check_exposure
from meshinfer.api.health import StatusSource, health_handler, status_handler
from meshinfer.api.http_log import HttpLog
from meshinfer.api.metrics import NoMetrics, metrics_handler
from meshinfer.api.models import ModelList
from meshinfer.api.options import ApiOptions
from meshinfer.api.running import RunningAnswers
from meshinfer.api.traffic import Traffic
from meshinfer.core.fleet import Address
from meshinfer.core.request import Door
from meshinfer.errors import UsageError

__all__ = ["ApiOptions", "ApiServer"]

_IDLE_CONNECTION_S = 75.0  # above what clients and proxies keep, so that they close first
_LAST_WORDS_S = 1.0  # what handlers get to write their error while the server closes


class ApiServer:
    """`metrics` are the figures of this PC that /metrics shows beside the API's own.

    `chance` draws ids and seeds, `clock` is seconds since 1970, `timer` seconds from any start;
    they are for tests to fix.
    """

    def __init__(
        self,
        door: Door,
        status: StatusSource,
        options: ApiOptions,
        chance: Chance = secrets.randbits,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,  # Windows' monotonic() has steps of 16 ms
        metrics: Metrics | None = None,
    ) -> None:
        self._door = door
        self._status = status
        self._options = options
        self._metrics = metrics or NoMetrics()
        self._running = RunningAnswers()
        self._traffic = Traffic(timer)
        self._desk = AnswerDesk(door, options, self._running, self._traffic, chance, clock)
        self._runner: web.AppRunner | None = None

    async def start(self, address: Address) -> Address:
        """Listens; returns the address with the port that was taken. Call once.

        Raises UsageError when strangers could get in without a key, or the address cannot be
        bound.
        """
        check_exposure(address, self._options)
        self._runner = web.AppRunner(
            self._application(address),
            handler_cancellation=True,  # a client that is gone cancels its request
            access_log=None,
            logger=HttpLog(logging.getLogger("meshinfer.api.http")),
            keepalive_timeout=_IDLE_CONNECTION_S,
            shutdown_timeout=_LAST_WORDS_S,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, address.host, address.port).start()
        except OSError as error:
            await self.close()
            raise _cannot_bind(address, error) from error
        return Address(address.host, self._runner.addresses[0][1])

    async def close(self) -> None:
        """Ends all answers; idempotent. Takes at most `drain_s` and a few seconds."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        # 1. stop accepting connections, and answers on those that are open
        for site in runner.sites:
            await site.stop()
        self._running.refuse()
        # 2. let running answers end by themselves
        await self._running.wait_empty(self._options.drain_s)
        # 3. tell the clients of the others
        self._running.fail()
        await self._running.wait_empty(_LAST_WORDS_S)
        # 4. cut what is left: clients that do not read
        await runner.cleanup()
        await self._running.wait_empty(_LAST_WORDS_S)
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    def _application(self, address: Address) -> web.Application:
        guard = Guard(address, self._options)
        application = web.Application(
            middlewares=[self._traffic.count, in_envelope, guard.admit],
            client_max_size=self._options.body_limit,
        )
        application.on_response_prepare.append(guard.mark)
        models = ModelList(self._door)
        application.add_routes(
            [
                web.get("/health", health_handler(self._door)),
                web.get("/v1/models", models.list),
                web.get("/v1/models/{id:.+}", models.show),
                web.post("/v1/chat/completions", chat_handler(self._desk)),
                web.post("/v1/completions", completion_handler(self._desk)),
                web.get("/meshinfer/v1/status", status_handler(self._status)),
                web.get("/metrics", metrics_handler(self._traffic, self._metrics)),
                *(web.post(path, absent) for path in PATHS),
            ]
        )
        return application


def _cannot_bind(address: Address, error: OSError) -> UsageError:
    remedy = "Choose another with --api HOST:PORT."
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"The API's port {address} is taken by another program.", remedy)
    # strerror of the system, or of the resolver for a name that does not exist
    return UsageError(f"The API cannot listen on {address} ({error.strerror}).", remedy)
