"""The serving side of a transfer link, played by hand in tests."""

from __future__ import annotations

from collections.abc import Collection

from meshinfer.core.ids import Digest
from meshinfer.link.base import Link
from meshinfer.weights.piece_choice import set_of
from meshinfer.weights.store import Store
from meshinfer.wire.transfer import (
    TRANSFER_VERSION,
    PieceRequest,
    PiecesHeld,
    PiecesWanted,
    PieceWrong,
    TransferHello,
    pack_bitmaps,
    unpack_digests,
)


async def greet(link: Link) -> tuple[Digest, ...]:
    """What the puller wants."""
    assert (await link.receive()).message == TransferHello(TRANSFER_VERSION)
    wanted = await link.receive()
    assert isinstance(wanted.message, PiecesWanted)
    return unpack_digests(wanted.payload)


async def announce(
    link: Link,
    wanted: tuple[Digest, ...],
    held: Collection[Digest] | None = None,
    coming: Collection[Digest] = (),
    growing: bool = False,
) -> None:
    """What is here; everything unless `held` is given."""
    have = wanted if held is None else held
    bitmaps = pack_bitmaps(
        len(wanted),
        set_of(number for number, digest in enumerate(wanted) if digest in have),
        set_of(number for number, digest in enumerate(wanted) if digest in coming),
    )
    await link.send(PiecesHeld(growing), bitmaps)


async def welcome(link: Link) -> tuple[Digest, ...]:
    """Greet, and hold everything."""
    wanted = await greet(link)
    await announce(link, wanted)
    return wanted


async def asked(link: Link) -> Digest:
    """The next piece that is asked for; what the puller says of earlier ones is passed over."""
    message = (await link.receive()).message
    while isinstance(message, PieceWrong):
        message = (await link.receive()).message
    assert isinstance(message, PieceRequest), message
    return message.digest


def stored(store: Store, digest: Digest) -> bytes:
    place = store.piece(digest)
    assert place is not None
    with place.path.open("rb") as file:
        file.seek(place.offset)
        return file.read(place.length)
