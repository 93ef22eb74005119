"""What waits to be written on one link."""

from __future__ import annotations

import asyncio

import pytest

from meshinfer.errors import PeerLost
from meshinfer.mesh.outbox import MOST_BYTES, MOST_URGENT, MOST_WAITING, Outbox
from tests.mesh.virtual_time import run_virtual


async def taken(box: Outbox) -> list[object]:
    """All until the end."""
    items = []
    while (item := await box.take()) is not None:
        items.append(item[0])
    return items


def test_urgent_goes_first_and_order_is_kept_within() -> None:
    async def main() -> None:
        box = Outbox()
        for number in range(3):
            await box.put(f"mail {number}", b"")
            box.post(f"beat {number}")
        box.end("last")
        expected = [f"beat {n}" for n in range(3)] + [f"mail {n}" for n in range(3)] + ["last"]
        assert await taken(box) == expected

    run_virtual(main())


@pytest.mark.parametrize(
    ("payload", "fits"), [(b"", MOST_WAITING), (bytes(MOST_BYTES // 4), 4)], ids=["many", "large"]
)
def test_a_full_box_makes_its_sender_wait_and_nothing_else(payload: bytes, fits: int) -> None:
    async def main() -> None:
        box = Outbox()
        for number in range(fits):
            await box.put(number, payload)
        waiting = asyncio.create_task(box.put("late", payload))
        await asyncio.sleep(0)
        assert not waiting.done()
        box.post("beat")
        assert await box.take() == ("beat", b"")
        await asyncio.sleep(0)
        assert not waiting.done(), "a heartbeat makes no room"
        await box.take()
        assert await waiting

    run_virtual(main())


def test_too_many_heartbeats_replace_the_oldest() -> None:
    async def main() -> None:
        box = Outbox()
        for number in range(MOST_URGENT + 5):
            box.post(number)
        assert await box.take() == (5, b"")

    run_virtual(main())


def test_a_sealed_box_takes_nothing_more_but_its_writer_goes_on() -> None:
    """A superseded link: the last word is written, and the link is read on."""

    async def main() -> None:
        box = Outbox()
        await box.put("before", b"")
        box.seal("last word")
        assert not await box.put("after", b"")
        box.post("beat")
        assert [(await box.take() or ("",))[0] for _ in range(2)] == ["before", "last word"]
        writer = asyncio.create_task(box.take())
        await asyncio.sleep(0)
        assert not writer.done()
        box.end()
        assert await writer is None

    run_virtual(main())


def test_who_waits_for_room_learns_that_the_link_was_sealed_or_closed() -> None:
    async def main() -> None:
        for finish, raises in ((Outbox.seal, False), (Outbox.close, True)):
            box = Outbox()
            for number in range(MOST_WAITING):
                await box.put(number, b"")
            waiting = asyncio.create_task(box.put("late", b""))
            await asyncio.sleep(0)
            finish(box)
            if raises:
                with pytest.raises(PeerLost):
                    await waiting
            else:
                assert await waiting is False

    run_virtual(main())
