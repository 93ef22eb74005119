from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.weights.throttle import BURST_S, TokenBucket, UploadLimit
from tests.mesh.virtual_time import run_virtual

MB = 1_000_000
PIECE = 1 << 20


def test_the_first_piece_goes_at_once_and_the_next_when_it_is_paid() -> None:
    bucket = TokenBucket(20 * MB)
    assert bucket.wait_s(100.0) == 0.0
    bucket.take(PIECE, 100.0)
    assert bucket.wait_s(100.0) == pytest.approx(PIECE / (20 * MB))
    assert bucket.wait_s(100.0 + PIECE / (20 * MB)) == pytest.approx(0.0, abs=1e-9)


def test_an_idle_hour_is_not_saved_up() -> None:
    bucket = TokenBucket(20 * MB)
    bucket.take(0, 0.0)
    bucket.take(0, 3600.0)
    bucket.take(int(20 * MB * BURST_S) + PIECE, 3600.0)
    assert bucket.wait_s(3600.0) == pytest.approx(PIECE / (20 * MB))


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(MB)
    bucket.take(MB, 50.0)
    assert bucket.wait_s(49.0) == pytest.approx(1.0)
    assert bucket.wait_s(49.5) == pytest.approx(0.5)


@given(
    st.integers(100_000, 500 * MB),
    st.lists(st.tuples(st.integers(1, PIECE), st.floats(0, 0.016)), min_size=1, max_size=60),
)
def test_never_more_than_the_rate_the_burst_and_one_piece(
    rate: int, sends: list[tuple[int, float]]
) -> None:
    """Whoever sends as soon as he may, however late his timer."""
    bucket = TokenBucket(rate)
    now, sent = 0.0, 0
    for size, late_s in sends:
        now += bucket.wait_s(now) + late_s
        assert bucket.wait_s(now) < 1e-6
        bucket.take(size, now)
        sent += size
        assert sent <= rate * now + rate * BURST_S + PIECE + 1


@pytest.mark.parametrize("late_s", [0.0, 0.001, 0.016])
def test_twenty_megabytes_a_second_within_five_percent(late_s: float) -> None:
    bucket = TokenBucket(20 * MB)
    now, sent = 0.0, 0
    while now < 10.0:
        bucket.take(PIECE, now)
        sent += PIECE
        now += bucket.wait_s(now) + late_s
    assert sent / now == pytest.approx(20 * MB, rel=0.05)


def test_links_share_the_limit_piece_by_piece() -> None:
    """However eager one of them is, and whenever it comes."""
    order: list[str] = []

    async def send(limit: UploadLimit, name: str) -> None:
        while True:
            await limit.turn(PIECE)
            order.append(name)

    async def main() -> None:
        limit = UploadLimit(20 * MB)
        loop = asyncio.get_running_loop()
        began = loop.time()
        tasks = [asyncio.create_task(send(limit, "a"))]
        await asyncio.sleep(1.0)
        alone = len(order)
        tasks += [asyncio.create_task(send(limit, name)) for name in "bcd"]
        await asyncio.sleep(5.0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        shared = order[alone:]
        counts = [shared.count(name) for name in "abcd"]
        assert max(counts) - min(counts) <= 1
        rate = len(order) * PIECE / (loop.time() - began)
        assert rate == pytest.approx(20 * MB, rel=0.05)

    run_virtual(main())


def test_who_is_cancelled_while_it_waits_lets_the_next_one_in() -> None:
    async def main() -> None:
        limit = UploadLimit(MB)
        await limit.turn(MB)
        loop = asyncio.get_running_loop()
        began = loop.time()
        first, second = (asyncio.create_task(limit.turn(MB)) for _ in range(2))
        await asyncio.sleep(0.5)
        first.cancel()
        await second
        assert loop.time() - began == pytest.approx(1.0, abs=0.01)

    run_virtual(main())


def test_without_a_limit_nobody_waits() -> None:
    async def main() -> None:
        limit = UploadLimit()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(1000):
            await limit.turn(PIECE)
        assert loop.time() == began

    run_virtual(main())
