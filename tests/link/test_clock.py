"""The clocks that links and tests run on."""

from __future__ import annotations

import asyncio

from meshinfer.link.clock import LoopClock, ManualClock, sleep


def test_callbacks_run_in_order_at_their_own_moment() -> None:
    clock = ManualClock(0.0)
    seen: list[tuple[str, float]] = []
    clock.call_at(2.0, lambda: seen.append(("late", clock.now())))
    clock.call_at(1.0, lambda: seen.append(("early", clock.now())))
    clock.call_at(1.0, lambda: seen.append(("second", clock.now())))
    clock.advance(1.5)
    assert seen == [("early", 1.0), ("second", 1.0)]
    assert clock.now() == 1.5
    clock.advance(1.0)
    assert seen[-1] == ("late", 2.0)


def test_a_callback_may_ask_for_another_within_the_same_advance() -> None:
    clock = ManualClock(0.0)
    seen: list[float] = []

    def again() -> None:
        seen.append(clock.now())
        clock.call_at(clock.now() + 1.0, again)

    clock.call_at(1.0, again)
    clock.advance(3.0)
    assert seen == [1.0, 2.0, 3.0]


async def test_sleep_ends_when_the_clock_says_so_and_survives_cancelling() -> None:
    clock = ManualClock()
    sleeping = asyncio.ensure_future(sleep(clock, 5.0))
    await asyncio.sleep(0)
    sleeping.cancel()
    await asyncio.wait([sleeping])
    clock.advance(6.0)
    assert sleeping.cancelled()


async def test_the_loop_clock_is_the_loops() -> None:
    clock = LoopClock()
    assert clock.now() <= asyncio.get_running_loop().time()
    await sleep(clock, 0.0)
