"""Waking whoever waits."""

from __future__ import annotations

import asyncio

import pytest

from meshinfer.mesh.notice import Notice


async def test_all_who_wait_wake_and_who_comes_later_waits() -> None:
    notice = Notice()
    early = [asyncio.create_task(notice.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    notice.notify()
    late = asyncio.create_task(notice.wait())
    async with asyncio.timeout(1.0):
        await asyncio.gather(*early)
    assert not late.done()
    notice.notify()
    async with asyncio.timeout(1.0):
        await late


async def test_who_gave_up_is_not_woken() -> None:
    notice = Notice()
    waiting = asyncio.create_task(notice.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    notice.notify()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_notice_without_listeners_is_not_kept() -> None:
    notice = Notice()
    notice.notify()
    waiting = asyncio.create_task(notice.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    notice.notify()
    async with asyncio.timeout(1.0):
        await waiting
