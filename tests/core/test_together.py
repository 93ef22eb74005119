"""`together`: the first error, all ended, cancellation kept."""

from __future__ import annotations

import asyncio

import pytest

from meshinfer.core.together import together
from meshinfer.errors import PeerLost, StageFailed


async def for_ever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append("ended")


async def fails(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def returns() -> None:
    await asyncio.sleep(0)


async def test_all_end_and_nothing_is_raised() -> None:
    await together(returns(), returns())


async def test_the_first_error_ends_the_others_and_is_raised_as_it_is() -> None:
    ended: list[str] = []
    with pytest.raises(PeerLost, match="gone"):
        await together(for_ever(ended), fails(PeerLost("gone")), for_ever(ended))
    assert ended == ["ended", "ended"]


async def test_a_bug_goes_before_an_error_that_callers_handle() -> None:
    with pytest.raises(ZeroDivisionError):
        await together(fails(StageFailed("x")), fails(ZeroDivisionError()))


async def test_cancelling_ends_all() -> None:
    ended: list[str] = []
    task = asyncio.create_task(together(for_ever(ended), for_ever(ended)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended", "ended"]


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_at_the_moment_of_a_failure_is_not_lost(turns: int) -> None:
    """The reason for this module: a loop around it must end when its owner ends it."""

    async def loop() -> None:
        while True:
            try:
                await together(fails(PeerLost("gone")), for_ever([]))
            except PeerLost:
                continue

    task = asyncio.create_task(loop())
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait([task])
    assert task.cancelled()
