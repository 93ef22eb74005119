"""The engine's thread: order, errors, cancellation, and an event loop that stays free (N08)."""

from __future__ import annotations

import asyncio
import threading

import pytest

from meshinfer.engine.thread import EngineThread
from meshinfer.errors import StageFailed


async def begun(started: threading.Event) -> None:
    """Another thread set the event; the test's own deadline bounds the wait."""
    await asyncio.to_thread(started.wait)


async def test_calls_run_in_order_on_one_thread() -> None:
    engine = EngineThread()
    seen: list[tuple[int, int]] = []

    def note(number: int) -> int:
        seen.append((number, threading.get_ident()))
        return number * 2

    try:
        results = await asyncio.gather(*(engine.run(note, number) for number in range(20)))
    finally:
        await engine.close()
    assert results == [number * 2 for number in range(20)]
    assert [number for number, _ in seen] == list(range(20))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert len({thread for _, thread in seen}) == 1


async def test_errors_come_back_and_the_thread_goes_on() -> None:
    engine = EngineThread()

    def fail() -> None:
        raise StageFailed("broken")

    try:
        with pytest.raises(StageFailed, match="broken"):
            await engine.run(fail)
        assert await engine.run(max, 3, 4) == 4
    finally:
        await engine.close()


async def test_heartbeats_go_on_while_a_stage_computes() -> None:
    engine = EngineThread()
    started, release = threading.Event(), threading.Event()

    def compute() -> str:
        started.set()
        assert release.wait(10)
        return "done"

    async def heartbeats() -> int:
        beats = 0
        while beats < 1000 or not started.is_set():
            await asyncio.sleep(0)
            beats += 1
        return beats

    try:
        async with asyncio.timeout(10):
            call = asyncio.ensure_future(engine.run(compute))
            assert await heartbeats() >= 1000
            assert not call.done()
            release.set()
            assert await call == "done"
    finally:
        release.set()
        await engine.close()


async def test_cancelling_a_caller_lets_its_call_end_and_keeps_the_queue() -> None:
    engine = EngineThread()
    started, release = threading.Event(), threading.Event()
    seen: list[str] = []

    def slow() -> None:
        started.set()
        assert release.wait(10)
        seen.append("slow")

    try:
        async with asyncio.timeout(10):
            running = asyncio.ensure_future(engine.run(slow))
            waiting = asyncio.ensure_future(engine.run(seen.append, "cancelled"))
            behind = asyncio.ensure_future(engine.run(seen.append, "behind"))
            await begun(started)
            running.cancel()
            waiting.cancel()
            for task in (running, waiting):
                with pytest.raises(asyncio.CancelledError):
                    await task
            release.set()
            await behind
    finally:
        release.set()
        await engine.close()
    assert seen == ["slow", "behind"]


async def test_close_waits_for_the_running_call_and_refuses_the_others() -> None:
    engine = EngineThread()
    started, release = threading.Event(), threading.Event()
    seen: list[str] = []

    def slow() -> None:
        started.set()
        assert release.wait(10)
        seen.append("slow")

    async with asyncio.timeout(10):
        running = asyncio.ensure_future(engine.run(slow))
        waiting = asyncio.ensure_future(engine.run(seen.append, "waiting"))
        await begun(started)
        closing = asyncio.ensure_future(engine.close())
        closing_again = asyncio.ensure_future(engine.close())
        await asyncio.sleep(0)
        assert not closing.done()
        release.set()
        await asyncio.gather(running, closing, closing_again)
        with pytest.raises(StageFailed, match="closed"):
            await waiting
        with pytest.raises(StageFailed, match="closed"):
            await engine.run(seen.append, "late")
        await engine.close()
    assert seen == ["slow"]


async def test_the_thread_is_gone_after_close() -> None:
    engine = EngineThread(name="counted")
    await engine.run(int)
    assert any(thread.name.startswith("counted") for thread in threading.enumerate())
    await engine.close()
    assert not any(thread.name.startswith("counted") for thread in threading.enumerate())
