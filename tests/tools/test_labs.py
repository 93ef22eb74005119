"""The laboratory's pure parts by tables, its proxy over real sockets, its refusals."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.errors import UsageError
from tools.free_ports import free_ports
from tools.lab import Lab, LabOrder, obey, order_of
from tools.labs import namespaces
from tools.labs.learning import LearningSwitch
from tools.labs.line import Line, Lines
from tools.labs.network import LabNetwork, NetworkOrder
from tools.labs.proxy import HIDDEN_HOST, shown_host
from tools.labs.quality import LINK, PROXY, SWITCH, LinkQuality, check_method

PATIENCE_S = 10.0
MBIT = 125_000  # bytes


def line(quality: LinkQuality, backlog_s: float = 10.0, seed: int = 1) -> Line:
    return Line(quality, random.Random(seed), backlog_s)


@pytest.mark.parametrize(
    ("quality", "sent", "arrives"),
    [
        (LinkQuality(), [(1.0, 99), (1.0, 99)], [1.0, 1.0]),
        (LinkQuality(delay_ms=50), [(1.0, 99), (1.01, 99)], [1.05, 1.06]),
        # one megabit a second: one after the other, then at rest again
        (LinkQuality(rate_mbit=1), [(0.0, MBIT), (0.0, MBIT), (9.0, MBIT)], [1.0, 2.0, 10.0]),
        (LinkQuality(rate_mbit=1, delay_ms=500), [(0.0, MBIT), (0.0, MBIT)], [1.5, 2.5]),
        (LinkQuality(cut=True), [(0.0, 1)], [None]),
        (LinkQuality(loss=100), [(0.0, 1), (1.0, 1)], [None, None]),
    ],
)
def test_when_a_line_delivers(
    quality: LinkQuality, sent: list[tuple[float, int]], arrives: list[float | None]
) -> None:
    one = line(quality)
    assert [one.arrival(now, size) for now, size in sent] == pytest.approx(arrives)


def test_a_full_line_drops_and_recovers() -> None:
    one = line(LinkQuality(rate_mbit=1), backlog_s=1.5)
    found = [one.arrival(now, MBIT) for now in (0.0, 0.0, 0.0, 1.0)]
    assert found == [1.0, 2.0, None, 3.0]


@given(
    st.lists(st.tuples(st.floats(0, 0.1), st.integers(1, 9000)), min_size=2),
    st.integers(0, 9),
    st.floats(0, 50),
)
def test_nothing_overtakes_and_nothing_comes_before_it_was_sent(
    gaps: list[tuple[float, int]], seed: int, jitter_ms: float
) -> None:
    one = line(LinkQuality(delay_ms=20, jitter_ms=jitter_ms, rate_mbit=10), seed=seed)
    now, found = 0.0, []
    for gap, size in gaps:
        now += gap
        arrival = one.arrival(now, size)
        assert arrival is not None
        assert arrival >= now
        found.append(arrival)
    assert all(a <= b for a, b in pairwise(found))


def test_the_same_seed_loses_the_same_frames_and_about_as_many_as_it_should() -> None:
    def lost(seed: int) -> list[bool]:
        one = Lines(LinkQuality(loss=20), seed).line(1, 2)
        return [one.arrival(0.0, 1) is None for _ in range(2000)]

    assert lost(1) == lost(1) != lost(2)
    assert 300 < sum(lost(1)) < 500


def test_a_pc_reaches_itself_without_the_network() -> None:
    assert Lines(LinkQuality(delay_ms=50, cut=True), 0).line(2, 2).arrival(1.0, 9) == 1.0


A, B = (bytes([2, 0, 0, 0, 0, n]) for n in (1, 2))
ALL, GROUP = b"\xff" * 6, bytes([1, 0, 0x5E, 0, 0, 0xFB])


@pytest.mark.parametrize(
    ("frames", "ways"),
    [
        ([(1, B + A)], [(2, 3)]),  # nobody was heard yet
        ([(1, ALL + A), (2, A + B), (1, B + A)], [(2, 3), (1,), (2,)]),
        ([(1, ALL + A), (1, A + B)], [(2, 3), ()]),  # both behind one port
        ([(1, ALL + A), (3, ALL + A), (2, A + B)], [(2, 3), (1, 2), (3,)]),  # it moved
        ([(1, GROUP + A)], [(2, 3)]),
        ([(1, B + GROUP), (2, GROUP + B)], [(2, 3), (1, 3)]),  # a group is never a source
        ([(1, b"short")], [()]),
    ],
)
def test_a_switch_learns(frames: list[tuple[int, bytes]], ways: list[tuple[int, ...]]) -> None:
    switch = LearningSwitch((1, 2, 3))
    assert [switch.ways(port, frame + b"..") for port, frame in frames[:-1]] == ways[:-1]
    assert switch.ways(*frames[-1]) == ways[-1]


@pytest.mark.parametrize(
    ("method", "quality", "says"),
    [
        (LINK, LinkQuality(delay_ms=1, jitter_ms=1), "has a delay and nothing else"),
        (PROXY, LinkQuality(loss=1), "has no loss"),
    ],
)
def test_what_a_method_cannot_do_is_refused(method: str, quality: LinkQuality, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_method(method, quality)
    with pytest.raises(UsageError, match=says):
        Lab(LabOrder(2, method, quality))


@pytest.mark.parametrize("field", ["delay_ms", "jitter_ms", "rate_mbit", "loss"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), 1e9])
def test_a_quality_is_bounded(field: str, value: float) -> None:
    fields: dict[str, Any] = {field: value}
    with pytest.raises(UsageError, match="is not from 0"):
        LinkQuality(**fields)


def test_flags_of_the_lab_and_of_up_are_kept_apart() -> None:
    words = ["up", "--pcs", "3", "--delay", "50", "--model", os.curdir, "--", "--stages", "2"]
    order = order_of(words)
    assert (order.pcs, order.quality, order.words) == (3, LinkQuality(50.0), ("--stages", "2"))


@pytest.mark.parametrize("text", ["fly", "cut 1", "delay 1 two 3", "cut 1 9", "delay 1 2 -4"])
def test_a_command_that_makes_no_sense_changes_nothing(text: str) -> None:
    lab = Lab(LabOrder(2, PROXY))
    before = lab.network.qualities
    with pytest.raises(UsageError):
        obey(lab, text)
    assert lab.network.qualities == before


@contextmanager
def echo(port: int) -> Iterator[None]:
    """What an agent would be: listens behind the proxy and sends everything back."""
    with socket.create_server((HIDDEN_HOST, port)) as listener:

        def serve() -> None:
            try:
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        while data := connection.recv(1 << 16):
                            connection.sendall(data)
            except OSError:
                return  # closed at the end of the test

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
async def test_a_proxy_carries_delays_cuts_heals_and_aborts() -> None:
    """This process is PC 1 and, listening, PC 2."""
    one, two = free_ports(2)
    order = NetworkOrder(PROXY, LinkQuality(delay_ms=30), {1: one, 2: two}, {})
    loop = asyncio.get_running_loop()
    with echo(two), LabNetwork(order) as network:
        network.introduce({1: os.getpid()})
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(shown_host(2), two)
            writer.write(b"ping")
            await reader.readexactly(4)  # with the proxy's own connecting
            begin = loop.time()
            writer.write(b"ping")
            assert await reader.readexactly(4) == b"ping"
            assert loop.time() - begin >= 0.06

            network.cut_one_way(2, 1)
            writer.write(b"held")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.15):
                    await reader.readexactly(1)
            network.heal()
            assert await reader.readexactly(4) == b"held"

            network.abort(1, 2)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not() or "can run")
def test_a_switch_is_removed_when_it_ends() -> None:
    order = NetworkOrder(
        SWITCH, LinkQuality(delay_ms=5), {1: 1, 2: 1}, dict(enumerate(free_ports(2), 1))
    )
    with LabNetwork(order) as network:
        names = network.namespaces
        assert sorted(names) == [1, 2]
        network.change((1, 2), loss=3.0)
        assert network.qualities[2, 1].loss == 3.0
        assert all(os.path.exists(f"/run/netns/{name}") for name in names.values())
    assert not any(os.path.exists(f"/run/netns/{name}") for name in names.values())
