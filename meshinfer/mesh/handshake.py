"""The first exchange on a mesh link: versions, then who is who.

The dialling PC speaks first, so that a PC answers nothing to one that does not greet (case S08);
TLS has admitted it to the fleet before. Called by the runner for every link.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from meshinfer.core.ids import short
from meshinfer.errors import (
    MeshInferError,
    PeerLost,
    ProtocolViolation,
    TimedOut,
    VersionMismatch,
)
from meshinfer.errors import from_code as error_from_code
from meshinfer.link.base import Link
from meshinfer.wire import codec
from meshinfer.wire.hello import Hello, Introduction, Refused
from meshinfer.wire.registry import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION

_LONGEST_CAUSE = 500  # characters of a refusal that are sent or shown


@dataclass(frozen=True, slots=True)
class Versions:
    """What has to fit between two PCs."""

    software: str
    openvino: str
    protocol_oldest: int = OLDEST_PROTOCOL_VERSION
    protocol_newest: int = PROTOCOL_VERSION


async def greet(
    link: Link, own: Versions, introduce: Callable[[int], Introduction], drawn: int
) -> Introduction:
    """The dialling side; `drawn` names the link. Returns what the other PC says of itself.

    Raises VersionMismatch (said to the other side too), PeerLost, ProtocolViolation.
    """
    await link.send(_hello(own, introduce(drawn)))
    return await _opened(link, own, _expect_hello((await link.receive()).message))


async def answer(
    link: Link, own: Versions, introduce: Callable[[int], Introduction]
) -> Introduction:
    """The dialled side; raises as `greet` does. Nothing is said before the other PC fits."""
    told = await _opened(link, own, _expect_hello((await link.receive()).message))
    await link.send(_hello(own, introduce(told.link)))
    return told


async def in_time(exchange: Awaitable[Introduction], link: Link, patience_s: float) -> Introduction:
    """The result of `greet` or `answer`. Raises TimedOut for a PC that goes silent in it."""
    try:
        async with asyncio.timeout(patience_s):
            return await exchange
    except TimeoutError as error:
        raise TimedOut(f"{link.address} did not introduce itself in time.") from error


def _hello(own: Versions, introduction: Introduction) -> Hello:
    return Hello(
        own.protocol_oldest,
        own.protocol_newest,
        own.software,
        own.openvino,
        codec.encode(introduction),
    )


def _expect_hello(message: object) -> Hello:
    if isinstance(message, Refused):
        raise _refusal(message)
    if not isinstance(message, Hello):
        raise ProtocolViolation(f"{type(message).__name__} before Hello")
    return message


def _refusal(message: Refused) -> MeshInferError:
    """What the other side said, in its own words, as an error of this side."""
    cause = "".join(one for one in message.cause[:_LONGEST_CAUSE] if one.isprintable())
    error = error_from_code(message.code, f"The other PC refused: {cause}")
    known = isinstance(error, VersionMismatch | PeerLost | ProtocolViolation)
    return error if known else PeerLost(error.cause)


async def _opened(link: Link, own: Versions, theirs: Hello) -> Introduction:
    why = mismatch(own, theirs)
    if why:
        with contextlib.suppress(PeerLost):
            await link.send(Refused(VersionMismatch.code, why[:_LONGEST_CAUSE]))
        raise VersionMismatch(
            f"PC {short(link.peer)} at {link.address} does not fit: {why}",
            "Update the older of the two.",
        )
    return theirs.introduction()


def mismatch(own: Versions, theirs: Hello) -> str:
    """Why the two cannot work together, with both versions; empty when they can.

    OpenVINO has to agree in major and minor number: another one may compute other values from
    the same stage, and nobody would notice.
    """
    if own.protocol_newest < theirs.protocol_oldest or theirs.protocol_newest < own.protocol_oldest:
        return (
            f"protocol {own.protocol_oldest} to {own.protocol_newest} "
            f"(meshinfer {own.software}) against {theirs.protocol_oldest} to "
            f"{theirs.protocol_newest} (meshinfer {_shown(theirs.software)})."
        )
    if own.openvino.split(".")[:2] != theirs.openvino.split(".")[:2]:
        return f"OpenVINO {own.openvino} against {_shown(theirs.openvino)}."
    return ""


def _shown(version: str) -> str:
    return "".join(one for one in version[:64] if one.isprintable())
