"""One PC of the transfer bench: a store behind a real port, asked over its standard input.

    python -m tools.benches.transfer_pc SPEC

SPEC is JSON: state (folder of the identity), store, port, core (or null), limit (bytes a second or
null). Each line of input is a command, each line of output its answer; see `_COMMANDS`. Started by
tools/benches/transfer.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NO_EPOCH, Digest, NodeId, PlanId
from meshinfer.link.base import RING, TRANSFER, Link
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.identity import load
from meshinfer.link.server import LinkServer
from meshinfer.link.trust import Trust
from meshinfer.node.agent import DISK_THREADS
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.manifest import manifest_from_json
from meshinfer.weights.piece_server import PieceServer
from meshinfer.weights.store import Store
from meshinfer.weights.throttle import UploadLimit
from meshinfer.weights.transfer import Source, pull_stage
from meshinfer.wire.ring import StepFrame

HOST = "127.0.0.1"
STEP_BYTES = 16 << 10  # the activation of one row of width 4096 in f32
STEP_EVERY_S = 0.005
LAG_EVERY_S = 0.005


class BenchPc:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._trust = Trust(load(Path(spec["state"])))
        self._dialer = WebSocketDialer(self._trust)
        self._disk = ThreadPoolExecutor(DISK_THREADS)
        self._exchange = Exchange(
            Store(Path(spec["store"])), self._disk, UploadLimit(spec["limit"])
        )
        self._port = int(spec["port"])
        self._ring: asyncio.Queue[Link] = asyncio.Queue()
        self._dialled: Link | None = None
        self._trips: list[float] = []
        self._lags: list[float] = []
        self._cpu = time.process_time()
        self._work: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        handlers = {TRANSFER: PieceServer(self._exchange).serve, RING: self._accept_ring}
        server = LinkServer(self._trust, handlers, lambda refusal: None)
        await server.start(Address(HOST, self._port))
        self._spawn(self._measure_lag())
        _say({"node": self._trust.node})
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            _say(await _COMMANDS[command.pop("do")](self, **command))
        for task in self._work:
            task.cancel()
        await asyncio.wait(self._work)
        await server.close()
        await self._dialer.close()

    async def pull(self, manifest: str, sources: list[tuple[str, int, bool]]) -> dict[str, Any]:
        began = time.perf_counter()
        await pull_stage(
            manifest_from_json(manifest),
            [self._source(NodeId(node), port, spare) for node, port, spare in sources],
            self._exchange,
            lambda done, total: None,
        )
        return {"seconds": time.perf_counter() - began}

    async def forget(self, stage: str) -> dict[str, Any]:
        """The stage is not here any more."""
        folder = self._exchange.store.stage_folder(Digest(stage))
        if folder is not None:
            await asyncio.to_thread(_remove, folder)
        return {}

    async def join_ring(self, node: str, port: int) -> dict[str, Any]:
        """Steps come in on a link that this PC dials, as in a fleet."""
        self._dialled = await self._dialer.dial(Address(HOST, port), RING, NodeId(node))
        return {}

    async def echo_steps(self) -> dict[str, Any]:
        """Every step that comes is sent on to the other PC."""
        self._spawn(self._echo(await self._ring.get()))
        return {}

    async def send_steps(self) -> dict[str, Any]:
        """A step every few milliseconds; its way there and back is measured."""
        self._spawn(self._ping(await self._ring.get()))
        return {}

    async def figures(self) -> dict[str, Any]:
        """What was measured since the last time, in seconds."""
        cpu = time.process_time()
        found = {"trips": self._trips[:], "lags": self._lags[:], "cpu": cpu - self._cpu}
        self._cpu = cpu
        self._trips.clear()
        self._lags.clear()
        return found

    def _source(self, node: NodeId, port: int, spare: bool) -> Source:
        return Source(lambda: self._dialer.dial(Address(HOST, port), TRANSFER, node), spare)

    async def _accept_ring(self, link: Link) -> None:
        await self._ring.put(link)
        await asyncio.Event().wait()

    async def _echo(self, out: Link) -> None:
        assert self._dialled is not None
        while True:
            step = await self._dialled.receive()
            await out.send(step.message, step.payload)

    async def _ping(self, out: Link) -> None:
        assert self._dialled is not None
        payload = bytes(STEP_BYTES)
        number = 0
        while True:
            number += 1
            began = time.perf_counter()
            frame = StepFrame(
                epoch=NO_EPOCH,
                plan=PlanId("bench"),
                edge=0,
                step=number,
                rows=1,
                tokens=1,
                released=(),
                openings=(),
                timings=(),
            )
            await out.send(frame, payload)
            await self._dialled.receive()
            self._trips.append(time.perf_counter() - began)
            await asyncio.sleep(STEP_EVERY_S)

    async def _measure_lag(self) -> None:
        """How late the event loop is."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(LAG_EVERY_S)
            self._lags.append(time.perf_counter() - began - LAG_EVERY_S)

    def _spawn(self, work: Any) -> None:
        self._work.add(asyncio.ensure_future(work))


_COMMANDS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "pull": BenchPc.pull,
    "forget": BenchPc.forget,
    "join_ring": BenchPc.join_ring,
    "echo_steps": BenchPc.echo_steps,
    "send_steps": BenchPc.send_steps,
    "figures": BenchPc.figures,
}


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    spec = json.loads(sys.argv[1])
    if spec["core"] is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {spec["core"]})
    asyncio.run(BenchPc(spec).run())


if __name__ == "__main__":
    main()
