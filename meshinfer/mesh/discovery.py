"""mDNS: announces this PC on the LAN and hears of others. The only importer of zeroconf and ifaddr.

What leaves are hints (`hints`), read by the runner. One Zeroconf an interface: one over several
merges separate name spaces (python-zeroconf issue 54). Announced without probing, which takes
1.2 s: the instance name is a hash of the PC's key, so it is unique, and a stale announcement of the
same PC is simply replaced (case J06).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import ifaddr
import zeroconf
from zeroconf import IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from meshinfer.core.fleet import Address
from meshinfer.core.ids import FleetId, NodeId
from meshinfer.mesh.addresses import InterfaceAddress, candidates, chosen_for_discovery
from meshinfer.mesh.announcement import SERVICE, Sightings, instance, text, understood
from meshinfer.mesh.hints import Hint
from meshinfer.mesh.owned_tasks import OwnedTasks

POLL_S = 5.0
RESOLVE_MS = 3000
MOST_RESOLVING = 64
MOST_HINTS = 1024
CLOSE_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiscoveryOptions:
    """`only`: hosts of the interfaces to use (tests, `--bind`); empty: those that lead to a LAN.
    `advertise`: what to tell instead of this PC's own addresses."""

    only: tuple[str, ...] = ()
    advertise: tuple[Address, ...] = ()
    poll_s: float = POLL_S


def interface_addresses() -> tuple[InterfaceAddress, ...]:
    """All addresses of all interfaces that are up. Takes a few milliseconds of blocking calls."""
    found = []
    for adapter in ifaddr.get_adapters():
        name = str(adapter.nice_name)
        for one in adapter.ips:
            host = one.ip if isinstance(one.ip, str) else one.ip[0]
            found.append(InterfaceAddress(name, str(host)))
    return tuple(found)


class Discovery:
    """`run` announces and listens until it is cancelled; `hints` may be read once."""

    def __init__(
        self,
        node: NodeId,
        fleet: FleetId,
        port: int,
        options: DiscoveryOptions | None = None,
        interfaces: Callable[[], Sequence[InterfaceAddress]] = interface_addresses,
    ) -> None:
        self._node = node
        self._fleet = fleet
        self._port = port
        self._options = options or DiscoveryOptions()
        self._interfaces = interfaces
        self._sightings = Sightings(node, fleet)
        self._hints: asyncio.Queue[Hint] = asyncio.Queue(MOST_HINTS)
        self._voices: dict[str, _Voice] = {}  # by the host of the interface
        self._told: tuple[Address, ...] = ()

    @property
    def other_fleets(self) -> dict[FleetId, int]:
        """PCs of each other fleet on this LAN, to tell a person who expects his own."""
        return self._sightings.other_fleets()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The interfaces in use, by address; empty: mDNS does not work here."""
        return tuple(self._voices)

    async def hints(self) -> AsyncIterator[Hint]:
        """Where PCs may be, as it becomes known. Never ends."""
        while True:
            yield await self._hints.get()

    async def run(self) -> None:
        """Follow the interfaces as they come and go. On cancellation take the announcement back."""
        try:
            while True:
                try:
                    await self._follow(await asyncio.to_thread(self._interfaces))
                except OSError as error:  # a network that is being set up or torn down
                    log.warning("the interfaces of this PC cannot be read: %s", error)
                await asyncio.sleep(self._options.poll_s)
        finally:
            voices, self._voices = list(self._voices.values()), {}
            for voice in voices:
                await voice.close()

    async def _follow(self, found: Sequence[InterfaceAddress]) -> None:
        chosen = {one.host for one in chosen_for_discovery(found, self._options.only)}
        told = self._options.advertise or candidates(
            [one for one in found if not self._options.only or one.host in chosen], self._port
        )
        changed = told != self._told
        self._told = told
        for host in [host for host in self._voices if changed or host not in chosen]:
            await self._voices.pop(host).close()
        for host in sorted(chosen - set(self._voices)):
            voice = _Voice(host, self._take_change)
            try:
                await voice.open(self._info())
            except (OSError, zeroconf.Error) as error:
                log.warning("no mDNS on %s (%s): trying again", host, error)
                await voice.close()
            else:
                self._voices[host] = voice

    def _info(self) -> AsyncServiceInfo:
        hosts = [one.host for one in self._told if _is_address(one.host)]
        port = self._told[0].port if self._told else self._port
        return AsyncServiceInfo(
            SERVICE,
            instance(self._node),
            parsed_addresses=hosts,
            port=port,
            properties=text(self._node, self._fleet, port),
            # Not the host name of the PC: two PCs may have the same one (case J06).
            server=f"{self._node}.local.",
        )

    def _take_change(self, host: str, name: str, info: AsyncServiceInfo | None) -> None:
        if info is None:
            hint = self._sightings.lost(host, name)
        else:
            told = understood(name, info.properties, info.parsed_addresses())
            hint = self._sightings.saw(host, told)
        if hint is not None:
            if self._hints.full():
                self._hints.get_nowait()  # nobody reads: the oldest is outdated first
            self._hints.put_nowait(hint)


class _Voice:
    """mDNS on one interface."""

    def __init__(
        self, host: str, take: Callable[[str, str, AsyncServiceInfo | None], None]
    ) -> None:
        self._host = host
        self._take = take
        self._tasks = OwnedTasks()
        self._resolving: set[str] = set()
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None

    async def open(self, info: AsyncServiceInfo) -> None:
        """Raises OSError or zeroconf.Error, e.g. when the interface has just gone."""
        _check_is_there(self._host)
        self._zeroconf = AsyncZeroconf(interfaces=[self._host], ip_version=IPVersion.V4Only)
        await self._zeroconf.zeroconf.async_wait_for_start()
        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, SERVICE, handlers=[self._on_change]
        )
        # The broadcasts (three, over 2 s) go on in the background; the first is sent at once.
        announced = await self._zeroconf.async_register_service(info, cooperating_responders=True)
        self._tasks.start(_finish(announced, self._host))

    async def close(self) -> None:
        """Take the announcement back, as far as the interface still works."""
        await self._tasks.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                if self._browser is not None:
                    await self._browser.async_cancel()
                if self._zeroconf is not None:
                    await self._zeroconf.async_unregister_all_services()
                    await self._zeroconf.async_close()
        except (OSError, zeroconf.Error, TimeoutError) as error:
            log.info("mDNS on %s did not end well: %s", self._host, error)

    def _on_change(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if state_change is ServiceStateChange.Removed:
            self._take(self._host, name, None)
            return
        info = AsyncServiceInfo(service_type, name)
        if info.load_from_cache(zeroconf):
            self._take(self._host, name, info)
        elif name not in self._resolving and len(self._resolving) < MOST_RESOLVING:
            self._resolving.add(name)
            self._tasks.start(self._resolve(zeroconf, info))

    async def _resolve(self, zeroconf: Zeroconf, info: AsyncServiceInfo) -> None:
        try:
            if await info.async_request(zeroconf, RESOLVE_MS):
                self._take(self._host, info.name, info)
        finally:
            self._resolving.discard(info.name)


def _check_is_there(host: str) -> None:
    """Raises OSError for an address that is gone: Zeroconf would fail too, but with a socket of
    its own left open."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))


async def _finish(announced: Any, host: str) -> None:
    try:
        await announced
    except (OSError, zeroconf.Error) as error:
        log.info("announcing on %s: %s", host, error)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
