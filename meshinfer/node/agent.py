"""The agent of this PC: a Node with real TLS, mDNS, disk and child processes around it.

`Agent` is the composition root: it makes the parts, owns their tasks, and takes them down in the
order that its comments number.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from meshinfer import __version__
from meshinfer.api.server import ApiOptions, ApiServer
from meshinfer.core.fleet import Address, Capacity
from meshinfer.core.ids import short
from meshinfer.link.base import MESH, RING, TRANSFER
from meshinfer.link.delayed import HopDelay
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.identity import Identity, load
from meshinfer.link.seal import Sealer
from meshinfer.link.server import LinkServer
from meshinfer.link.trust import Trust
from meshinfer.mesh.addresses import candidates
from meshinfer.mesh.capacity import CapacityMeter
from meshinfer.mesh.discovery import Discovery, DiscoveryOptions, interface_addresses
from meshinfer.mesh.epoch_file import EpochFile
from meshinfer.mesh.known_peers import KnownPeersFile
from meshinfer.mesh.runner import Mesh
from meshinfer.mesh.world import Me, World
from meshinfer.node.bad_peers import BadPeers
from meshinfer.node.library import DiskLibrary
from meshinfer.node.loop_lag import LoopLag
from meshinfer.node.metrics import NodeMetrics
from meshinfer.node.node import Node, NodeParts
from meshinfer.node.planning import FleetPlanner
from meshinfer.node.ports import choose_ports
from meshinfer.node.refusals import RefusalBook
from meshinfer.node.remembered import Remembered
from meshinfer.node.settings import Settings
from meshinfer.node.shard_source import ShardSource
from meshinfer.node.stage_job import KeeperOptions
from meshinfer.node.stage_runner import StageProcesses
from meshinfer.node.state_folder import RunningAgent, StateFolder
from meshinfer.node.status import StatusDesk
from meshinfer.node.stores import StoreChoice
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.piece_server import PieceServer
from meshinfer.weights.throttle import UploadLimit

DISK_THREADS = 4
FIGURES_AGE_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentPorts:
    agent: Address
    ring: Address
    api: Address


class Agent:
    """One PC of a fleet. `run` from the first port to the last goodbye."""

    def __init__(self, settings: Settings, folder: StateFolder) -> None:
        self._settings = settings
        self._folder = folder
        self._identity: Identity = load(folder.root)
        self._ports = AgentPorts(*choose_ports(settings))
        self._refusals = RefusalBook()
        self._bad_peers = BadPeers(time.time)
        self._meter = CapacityMeter(settings.memory_limit, wanted=settings.device)
        self._stages = StageProcesses()
        store = StoreChoice.of(settings, folder)
        self._library = DiskLibrary(
            folder,
            store,
            settings.model,
            settings.model_source,
            with_probes=settings.configuration == "auto" and not settings.deterministic,
            draft=settings.draft,
        )
        self._lag = LoopLag(time.monotonic)
        self._hop = HopDelay(self._identity.node, settings.hop_delay_s)
        self._disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk")
        self._exchange = Exchange(
            store.open(),
            self._disk,
            UploadLimit(settings.upload_limit),
            on_bad_peer=self._bad_peers.note,
        )
        self._discovery = self._make_discovery()
        self._capacity = Remembered(self._measure, FIGURES_AGE_S)
        self._holds_model = Remembered(self._library.has_choice, FIGURES_AGE_S)

    async def run(self) -> None:
        """Until cancelled. Raises UsageError (a port, the folder) before anything is started."""
        trust = Trust(self._identity)
        dialer = WebSocketDialer(trust)
        me = self._me()
        mesh = self._mesh(me, dialer)
        node = Node(self._parts(mesh, dialer, trust))
        handlers = {
            MESH: node.accept_mesh,
            RING: self._hop.handler(node.accept_ring),
            TRANSFER: PieceServer(self._exchange).serve,
        }
        server = LinkServer(trust, handlers, self._refusals.note)
        status = self._status(mesh, node).document
        api = ApiServer(node.door, status, self._api_options(), metrics=NodeMetrics(status))
        async with contextlib.AsyncExitStack() as stack:
            # taken down in the reverse order of this list:
            # 6. threads, when nothing uses them any more
            stack.callback(self._close_threads)
            # 5. outgoing connections, and stages that wait for a plan
            stack.push_async_callback(dialer.close)
            stack.push_async_callback(self._stages.close)
            # 4. the port for other PCs
            await server.start(self._ports.agent)
            stack.push_async_callback(server.close)
            # 3. the node: its stages are unloaded, its term ends
            running = await stack.enter_async_context(_owned(node.run()))
            # 2. a word to the others, so that nobody waits for a timeout
            stack.push_async_callback(mesh.leave, "its agent was stopped")
            # 1. clients first: no new answers, running ones end
            address = await api.start(self._ports.api)
            stack.push_async_callback(api.close)
            self._folder.announce(self._running_agent(address))
            log.info("%s", self._greeting(address))
            asked = await stack.enter_async_context(_owned(self._ask_devices()))
            seen = await stack.enter_async_context(_owned(self._announce()))
            watched = await stack.enter_async_context(_owned(self._lag.run()))
            await asyncio.gather(running, asked, seen, watched)

    def _me(self) -> Me:
        own = list(interface_addresses())
        agent, ring = self._ports.agent, self._ports.ring
        if agent.host not in ("0.0.0.0", "::"):
            own = [one for one in own if one.host == agent.host] or own
        listed = self._settings.advertise
        return Me(
            node=self._identity.node,
            name=self._settings.name,
            incarnation=self._folder.next_incarnation(),
            agent_addresses=listed or candidates(own, agent.port),
            ring_addresses=tuple(Address(one.host, ring.port) for one in listed)
            or candidates(own, ring.port),
            software=__version__,
        )

    def _mesh(self, me: Me, dialer: WebSocketDialer) -> Mesh:
        root = self._folder.root
        world = World(
            clock=time.monotonic,
            wall_clock=time.time,
            random=random.Random(),
            epochs=EpochFile(root / "epoch"),
            known_peers=KnownPeersFile(root / "peers.json"),
            capacity=self._capacity.get,
            holds_model=self._holds_model.get,
            next_incarnation=self._folder.next_incarnation,
        )
        return Mesh(
            me, dialer, world, seeds=self._settings.peers,
            hints=self._discovery.hints() if self._settings.mdns else None,
        )  # fmt: skip

    def _parts(self, mesh: Mesh, dialer: WebSocketDialer, trust: Trust) -> NodeParts:
        settings = self._settings
        return NodeParts(
            mesh=mesh,
            library=self._library,
            runner=self._stages,
            fetch=ShardSource(self._exchange, dialer, mesh).fetch,
            dialer=self._hop.dialer(dialer),
            seals=Sealer(trust),
            plan_for=FleetPlanner(settings.precision, settings.stages),
            room=lambda: self._measure().memory_free,
            clock=time.monotonic,
            keeper=KeeperOptions(
                state_folder=str(self._folder.root),
                listen=self._ports.ring,
                threads=settings.threads,
                deterministic=settings.deterministic,
                configuration=settings.configuration,
                hop_delay_s=settings.hop_delay_s,
            ),
            trace=settings.trace,
        )

    def _make_discovery(self) -> Discovery:
        listen = self._ports.agent
        everywhere = listen.host in ("0.0.0.0", "::")
        options = DiscoveryOptions(
            only=() if everywhere else (listen.host,), advertise=self._settings.advertise
        )
        return Discovery(self._identity.node, self._identity.fleet, listen.port, options)

    def _measure(self) -> Capacity:
        return self._meter.measure(self._stages.pids)

    async def _ask_devices(self) -> None:
        report = await self._meter.ask()
        if report.problem:
            log.warning("devices: %s", report.problem)

    async def _announce(self) -> None:
        if self._settings.mdns:
            await self._discovery.run()

    def _status(self, mesh: Mesh, node: Node) -> StatusDesk:
        return StatusDesk(
            self._identity.fleet,
            lambda: mesh.view,
            node.door,
            lambda: (*self._refusals.all(), *mesh.refusals),
            self._hints,
            self._lag,
            self._settings.hop_delay_s,
        )

    def _hints(self) -> list[str]:
        """What a person may want to know about this PC's place in the LAN."""
        hints = []
        if self._settings.mdns and not self._discovery.hosts:
            hints.append("mDNS works on no interface of this PC: name a PC with --peer.")
        for fleet, count in self._discovery.other_fleets.items():
            hints.append(f"Another fleet ({fleet[:8]}) with {count} PCs is on this network.")
        hints += self._bad_peers.hints()
        if self._meter.problem:
            hints.append(f"Devices: {self._meter.problem}")
        return hints

    def _api_options(self) -> ApiOptions:
        return ApiOptions(key=self._settings.api_key)

    def _running_agent(self, api: Address) -> RunningAgent:
        reachable = Address("127.0.0.1", api.port) if api.host == "0.0.0.0" else api
        return RunningAgent(
            pid=os.getpid(),
            api=str(reachable),
            listen=str(self._ports.agent),
            name=self._settings.name,
        )

    def _greeting(self, api: Address) -> str:
        identity = self._identity
        return (
            f"{self._settings.name} ({short(identity.node)}) of fleet {identity.fleet[:8]}: "
            f"other PCs at port {self._ports.agent.port} (stages {self._ports.ring.port}), "
            f"clients at http://{api}/v1"
        )

    def _close_threads(self) -> None:
        self._library.close()
        self._disk.shutdown(wait=True, cancel_futures=True)


@contextlib.asynccontextmanager
async def _owned(work: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Task[None]]:
    """A task that is cancelled and awaited when the scope is left."""
    task: asyncio.Task[None] = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
