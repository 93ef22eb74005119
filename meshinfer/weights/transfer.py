"""A stage brought here in pieces. A PC that needs one asks all that may hold pieces of it, and
believes nobody: a piece counts when its bytes have its digest.

Links come in open; files are read, hashed and written on the exchange's executor. Called by the
node; `weights.piece_server` is the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from meshinfer.core.model import StageManifest
from meshinfer.core.together import together
from meshinfer.errors import MeshInferError, PeerLost
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.patience import Patience
from meshinfer.weights.piece_source import PieceSource, Source
from meshinfer.weights.pull import Pull, Tell

__all__ = ["Patience", "Source", "Tell", "pull_stage"]

_T = TypeVar("_T")
_Sleep = Callable[[float], Awaitable[None]]


async def pull_stage(
    manifest: StageManifest,
    sources: Sequence[Source],
    exchange: Exchange,
    progress: Tell,
    patience: Patience = Patience(),  # noqa: B008 - frozen
    sleep: _Sleep = asyncio.sleep,
) -> Path:
    """The published folder of a stage, every byte checked against the manifest.

    All sources are asked at once, several pieces in flight on each; what an earlier attempt left on
    the disk is not asked again, and what is here is given on meanwhile. Links that are cut or
    silent are dialled again. Raises ShardCorrupt (a manifest that breaks the rules; the sources
    send other bytes than it promises), PeerLost (no source is left), DiskFull.
    """
    loop = asyncio.get_running_loop()
    store, executor = exchange.store, exchange.executor
    ready = await loop.run_in_executor(executor, store.verified_folder, manifest.digest)
    if ready is not None:
        progress(manifest.size, manifest.size)
        return ready
    with contextlib.ExitStack() as held:
        opening = loop.run_in_executor(
            executor, lambda: held.enter_context(store.partial(manifest))
        )
        partial = await _to_the_end(opening)
        pull = Pull(partial, progress, exchange)
        with exchange.incoming.pulling(pull.pieces):
            asked = [
                PieceSource(source, pull, patience, sleep, exchange.on_bad_peer)
                for source in sources
            ]
            await _ask_all(pull, asked)
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
    for source in sources:
        pull.enlist(source)
    if sources:
        await together(*[source.run() for source in sources])
    if not pull.finished:
        raise pull.reason or _nobody()


def _nobody() -> MeshInferError:
    return PeerLost("No PC that holds the stage's pieces is left.", "Wait for the next plan.")
