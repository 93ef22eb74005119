"""`meshinfer join` knocks at a member's door, so that a wrong code is told here and now.

The code is tried with a membership in a scratch folder: nothing is stored unless it may be right.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from meshinfer.core.fleet import Address
from meshinfer.core.ids import FleetId, NodeId
from meshinfer.errors import MeshInferError, PeerLost, TrustRefused
from meshinfer.link.base import MESH
from meshinfer.link.dialer import WebSocketDialer
from meshinfer.link.identity import Identity, join
from meshinfer.link.join_code import JoinCode
from meshinfer.link.trust import Trust
from meshinfer.mesh.discovery import Discovery
from meshinfer.mesh.hints import OtherFleet, PeerFound


async def introduce(code: JoinCode, peers: tuple[Address, ...], wait_s: float) -> Address | None:
    """Where a member of the code's fleet answered; None when nobody was found in `wait_s`.

    Raises TrustRefused when a named peer belongs to another fleet, or when only other fleets are on
    the network.
    """
    with tempfile.TemporaryDirectory(prefix="meshinfer-join-") as scratch:
        identity = await asyncio.to_thread(join, Path(scratch), code)
        async with WebSocketDialer(Trust(identity)) as dialer:
            refusal: TrustRefused | None = None
            for address in peers:
                try:
                    return await _knock(dialer, address, None)
                except TrustRefused as error:
                    refusal = error
                except MeshInferError:
                    continue  # nobody there: another peer, or mDNS, may know better
            if refusal is not None:
                raise TrustRefused(
                    f"The join code is of another fleet: {refusal.cause}",
                    "Copy it again from `meshinfer invite` on a PC of the right fleet.",
                )
            return await _find(dialer, identity, wait_s)


async def _knock(dialer: WebSocketDialer, address: Address, node: NodeId | None) -> Address:
    link = await dialer.dial(address, MESH, node)
    await link.close("only knocking")
    return address


async def _find(dialer: WebSocketDialer, identity: Identity, wait_s: float) -> Address | None:
    """A member that announces itself by mDNS."""
    others: set[FleetId] = set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s), _listening(identity) as discovery:
            async for hint in discovery.hints():
                if isinstance(hint, OtherFleet):
                    others.add(hint.fleet)
                elif isinstance(hint, PeerFound):
                    for address in hint.addresses:
                        with contextlib.suppress(PeerLost):
                            return await _knock(dialer, address, hint.node)
    if others:
        names = ", ".join(fleet[:8] for fleet in sorted(others))
        raise TrustRefused(
            f"The join code is of fleet {identity.fleet[:8]}; on this network is only {names}.",
            "Copy the code again from `meshinfer invite`, or start a PC of that fleet first.",
        )
    return None


@contextlib.asynccontextmanager
async def _listening(identity: Identity) -> AsyncIterator[Discovery]:
    """Hears announcements; announces this PC at the port of nobody while it does."""
    discovery = Discovery(identity.node, identity.fleet, port=9)
    task = asyncio.create_task(discovery.run())
    try:
        yield discovery
    finally:
        task.cancel()
        await asyncio.wait([task])
