"""The first words on a link."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from meshinfer.core.fleet import Address, Capacity
from meshinfer.core.ids import NO_EPOCH
from meshinfer.errors import MeshInferError, PeerLost, ProtocolViolation, TimedOut, VersionMismatch
from meshinfer.link.base import Link
from meshinfer.link.memory import memory_pair
from meshinfer.mesh.handshake import Versions, answer, greet, in_time, mismatch
from meshinfer.wire.forward import FleetReport
from meshinfer.wire.hello import Hello, Introduction, Refused
from tests.mesh.virtual_time import run_virtual

HERE = (Address("10.0.0.1", 7),)
CAPACITY = Capacity(8, 4, 2, (), "2026.4.1")
OURS = Versions("1.0", "2026.4.1", 1, 1)


def introduce(name: str) -> Callable[[int], Introduction]:
    return lambda drawn: Introduction(
        name, 1, drawn, NO_EPOCH, NO_EPOCH, HERE, HERE, CAPACITY, False
    )


async def outcome(exchange: Awaitable[Introduction]) -> Introduction | MeshInferError:
    try:
        return await exchange
    except MeshInferError as error:
        return error


async def both(
    dialling: Versions, serving: Versions
) -> tuple[Introduction | MeshInferError, Introduction | MeshInferError]:
    near, far = memory_pair()
    first, second = await asyncio.gather(
        outcome(greet(near, dialling, introduce("dialler"), 42)),
        outcome(answer(far, serving, introduce("server"))),
    )
    return first, second


def test_both_learn_who_the_other_is_and_name_the_link_alike() -> None:
    async def main() -> None:
        first, second = await both(OURS, OURS)
        assert isinstance(first, Introduction)
        assert isinstance(second, Introduction)
        assert (first.name, second.name) == ("server", "dialler")
        assert first.link == second.link == 42

    run_virtual(main())


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        pytest.param(Versions("2.0", "2026.4.1", 2, 3), ("1 to 1", "2 to 3"), id="protocol"),
        pytest.param(
            Versions("1.0", "2027.1.0", 1, 1), ("2026.4.1", "2027.1.0"), id="OpenVINO major"
        ),
        pytest.param(
            Versions("1.0", "2026.5.0", 1, 1), ("2026.4.1", "2026.5.0"), id="OpenVINO minor"
        ),
    ],
)
@pytest.mark.parametrize("they_dial", [True, False])
def test_a_mismatch_is_said_on_both_sides_with_both_versions(
    theirs: Versions, words: tuple[str, str], they_dial: bool
) -> None:
    """J13."""

    async def main() -> None:
        results = await both(theirs, OURS) if they_dial else await both(OURS, theirs)
        for result in results:
            assert isinstance(result, VersionMismatch)
            assert all(word in str(result) for word in words)

    run_virtual(main())


@pytest.mark.parametrize("openvino", ["2026.4.0", "2026.4.1-21000-abc", "2026.4"])
def test_patch_and_build_of_openvino_do_not_matter(openvino: str) -> None:
    assert mismatch(OURS, Hello(1, 1, "9.9", openvino, b"")) == ""


def test_a_version_range_that_overlaps_fits() -> None:
    assert mismatch(Versions("1", "2026.4", 1, 2), Hello(2, 5, "1", "2026.4", b"")) == ""


@pytest.mark.parametrize("message", [FleetReport("{}"), Refused("peer_lost", "no")])
def test_whoever_does_not_greet_hears_nothing(message: object) -> None:
    """S08."""

    async def main() -> None:
        near, far = memory_pair()
        await near.send(message)
        result = await outcome(answer(far, OURS, introduce("server")))
        assert isinstance(result, ProtocolViolation | PeerLost)
        await far.close()
        with pytest.raises(PeerLost):
            await near.receive()

    run_virtual(main())


def test_who_does_not_fit_hears_versions_only() -> None:
    async def main() -> None:
        near, far = memory_pair()
        await near.send(Hello(9, 9, "9", "2026.4.1", b""))
        await outcome(answer(far, OURS, introduce("server")))
        said = (await near.receive()).message
        assert isinstance(said, Refused)
        assert "server" not in said.cause
        await far.close()
        with pytest.raises(PeerLost):
            await near.receive()

    run_virtual(main())


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x90", b"\xff" * 100])
def test_a_body_that_cannot_be_read_is_a_violation(body: bytes) -> None:
    async def main() -> None:
        near, far = memory_pair()
        await near.send(Hello(1, 1, "1", "2026.4.1", body))
        assert isinstance(await outcome(answer(far, OURS, introduce("s"))), ProtocolViolation)

    run_virtual(main())


def test_what_the_other_side_says_is_shown_without_control_characters() -> None:
    async def main() -> None:
        near, far = memory_pair()
        await far.send(Refused("version_mismatch", "old\x1b[2J" + "x" * 3000))
        result = await outcome(greet(near, OURS, introduce("d"), 1))
        assert isinstance(result, VersionMismatch)
        assert "\x1b" not in str(result)
        assert len(str(result)) < 600

    run_virtual(main())


def test_silence_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        near, far = memory_pair()

        async def patient(link: Link) -> Introduction:
            return await in_time(answer(link, OURS, introduce("s")), link, 5.0)

        assert isinstance(await outcome(patient(far)), TimedOut)
        assert not near.closed, "closing is the caller's part"

    run_virtual(main())
