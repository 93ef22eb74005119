"""Pieces of stages between PCs. A PC that holds them answers by digest; a PC that needs a stage
asks whoever may have it and believes nobody: a piece counts when its bytes have its digest.

Links come in open; files are read, hashed and written on the caller's executor. Called by the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

from meshinfer.core.ids import Digest
from meshinfer.core.model import StageManifest
from meshinfer.core.together import together
from meshinfer.errors import (
    MeshInferError,
    PeerLost,
    ProtocolViolation,
    VersionMismatch,
)
from meshinfer.link.base import Link
from meshinfer.weights.piece_source import Patience, PieceSource, Source
from meshinfer.weights.pull import Pull, Tell
from meshinfer.weights.store import Store
from meshinfer.wire.transfer import PieceData, PieceMissing, PieceRequest, TransferHello

__all__ = ["Patience", "Source", "Tell", "pull_stage", "serve_pieces"]

TRANSFER_VERSION = 1
READ_AHEAD = 8
"""Pieces that a server reads before the first is sent: 8 MiB of memory a link."""

_T = TypeVar("_T")
_Read = asyncio.Future[bytes | None]
_Sleep = Callable[[float], Awaitable[None]]


async def serve_pieces(link: Link, store: Store, executor: Executor) -> None:
    """Answer requests in order until the link ends. Raises ProtocolViolation for a peer that sends
    anything else, VersionMismatch for one that speaks another version."""
    waiting: asyncio.Queue[tuple[Digest, _Read]] = asyncio.Queue(READ_AHEAD)
    try:
        await together(_take_requests(link, store, executor, waiting), _answer(link, waiting))
    except PeerLost:
        return
    finally:
        while not waiting.empty():  # nobody will await these reads
            waiting.get_nowait()[1].cancel()


async def _take_requests(
    link: Link, store: Store, executor: Executor, waiting: asyncio.Queue[tuple[Digest, _Read]]
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        match (await link.receive()).message:
            case PieceRequest(digest):
                # A full queue is back-pressure: the next request stays in the socket.
                read = loop.run_in_executor(executor, _read_piece, store, digest)
                await waiting.put((digest, read))
            case TransferHello(version):
                if version != TRANSFER_VERSION:
                    raise VersionMismatch(
                        f"The other PC transfers stages in version {version}, this one in "
                        f"{TRANSFER_VERSION}.",
                        "Update the older PC.",
                    )
            case other:
                raise ProtocolViolation(f"{type(other).__name__} instead of a piece request")


async def _answer(link: Link, waiting: asyncio.Queue[tuple[Digest, _Read]]) -> None:
    while True:
        digest, read = await waiting.get()
        data = await read
        if data is None:
            await link.send(PieceMissing(digest, "not in this PC's store"))
        else:
            await link.send(PieceData(digest), data)


def _read_piece(store: Store, digest: Digest) -> bytes | None:
    """None also for bytes that are wrong: what a disk spoilt is not passed on."""
    place = store.piece(digest)
    if place is None:
        return None
    try:
        with place.path.open("rb") as file:
            file.seek(place.offset)
            data = file.read(place.length)
    except OSError:  # published or removed in between
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None


async def pull_stage(
    manifest: StageManifest,
    sources: Source | Sequence[Source],
    store: Store,
    progress: Tell,
    executor: Executor,
    patience: Patience = Patience(),  # noqa: B008 - frozen
    sleep: _Sleep = asyncio.sleep,
) -> Path:
    """The published folder of a stage, every byte checked against the manifest.

    All sources are asked at once, several pieces in flight on each; what an earlier attempt left on
    the disk is not asked again. Links that are cut or silent are dialled again. Raises ShardCorrupt
    (a manifest that breaks the rules; the sources send other bytes than it promises), PeerLost (no
    source is left), DiskFull.
    """
    loop = asyncio.get_running_loop()
    ready = await loop.run_in_executor(executor, store.verified_folder, manifest.digest)
    if ready is not None:
        progress(manifest.size, manifest.size)
        return ready
    with contextlib.ExitStack() as held:
        opening = loop.run_in_executor(
            executor, lambda: held.enter_context(store.partial(manifest))
        )
        partial = await _to_the_end(opening)
        pull = Pull(partial, progress, executor)
        dials = (sources,) if callable(sources) else tuple(sources)
        await _ask_all(pull, [PieceSource(dial, pull, patience, sleep) for dial in dials])
        return await _to_the_end(loop.run_in_executor(executor, partial.publish))


async def _to_the_end(work: asyncio.Future[_T]) -> _T:
    """The result of work on a thread. A thread cannot be cancelled: it holds the partial stage's
    lock and files, so a cancelled caller waits until it has let go."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        work.exception()  # seen: the caller is no longer interested
        raise cancelled
    return work.result()


async def _ask_all(pull: Pull, sources: Sequence[PieceSource]) -> None:
    """Until all pieces are here. Raises why not."""
    pull.expect(len(sources))
    if sources:
        await together(*[source.run() for source in sources])
    if not pull.finished:
        raise pull.reason or _nobody()


def _nobody() -> MeshInferError:
    return PeerLost("No PC that holds the stage's pieces is left.", "Wait for the next plan.")
