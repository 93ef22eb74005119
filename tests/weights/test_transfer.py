from __future__ import annotations

import asyncio
import hashlib
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from meshinfer.core.fleet import Address
from meshinfer.core.ids import Digest, NodeId
from meshinfer.core.model import StageManifest
from meshinfer.errors import (
    DiskFull,
    MeshInferError,
    PeerLost,
    ProtocolViolation,
    ShardCorrupt,
    TrustRefused,
    VersionMismatch,
)
from meshinfer.link.base import TRANSFER, Link
from meshinfer.link.memory import MemoryNetwork
from meshinfer.weights.exchange import Exchange
from meshinfer.weights.manifest import build_manifest
from meshinfer.weights.piece_server import PieceServer
from meshinfer.weights.store import Store
from meshinfer.weights.transfer import Patience, Source, pull_stage
from meshinfer.wire.transfer import PieceData
from tests.weights.hand_server import announce, asked, greet, stored, welcome
from tests.weights.stage_maker import make_files, pieces_of, publish

QUICK = Patience(failures=3)
DEADLINE_S = 20.0
Serve = Callable[[Link], Awaitable[None]]


def _digest(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


@dataclass
class Lan:
    """PCs that serve pieces, one that pulls, and what was asked for and waited."""

    folder: Path
    executor: ThreadPoolExecutor
    network: MemoryNetwork = field(default_factory=MemoryNetwork)
    waits: list[float] = field(default_factory=list)
    dials: list[NodeId] = field(default_factory=list)
    bad: list[NodeId] = field(default_factory=list)
    told: list[tuple[int, int]] = field(default_factory=list)
    _next: int = 1

    @property
    def store(self) -> Store:
        return Store(self.folder / "mine")

    def pc(self, serve: Serve) -> Source:
        """A PC that serves so; the result dials it."""
        address, node = Address("memory", self._next), NodeId(f"pc{self._next}")
        self._next += 1
        self.network.listen(address, node, {TRANSFER: serve})
        dialer = self.network.dialer(NodeId("me"), Address("memory", 9))

        async def dial() -> Link:
            self.dials.append(node)
            return await dialer.dial(address, TRANSFER, node)

        return Source(dial)

    def honest(self, store: Store) -> Serve:
        return PieceServer(Exchange(store, self.executor)).serve

    def exchange(self, executor: ThreadPoolExecutor | None = None) -> Exchange:
        return Exchange(
            self.store,
            executor or self.executor,
            on_bad_peer=lambda node, why: self.bad.append(node),
        )

    def holder(self, seed: int = 0, pieces: int = 3) -> tuple[StageManifest, Store]:
        store = Store(self.folder / f"theirs{seed}")
        manifest, _ = publish(store, pieces, seed)
        return manifest, store

    async def pull(
        self, manifest: StageManifest, *sources: Source, patience: Patience = QUICK
    ) -> Path:
        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)
            await asyncio.sleep(0)

        async with asyncio.timeout(DEADLINE_S):
            return await pull_stage(
                manifest,
                sources,
                self.exchange(),
                lambda done, total: self.told.append((done, total)),
                patience,
                sleep,
            )


@pytest.fixture
async def lan(tmp_path: Path) -> AsyncIterator[Lan]:
    with ThreadPoolExecutor(2) as executor:
        lan = Lan(tmp_path, executor)
        yield lan
        await lan.network.close()


async def test_a_stage_arrives_whole(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=12)
    folder = await lan.pull(manifest, lan.pc(lan.honest(theirs)))
    assert folder == lan.store.verify_stage(manifest.digest)
    origin = theirs.verify_stage(manifest.digest)
    for file in manifest.files:
        assert (folder / file.name).read_bytes() == (origin / file.name).read_bytes()
    assert lan.told[0] == (0, manifest.size)
    assert lan.told[-1] == (manifest.size, manifest.size)
    assert lan.told == sorted(lan.told)


async def test_a_stage_that_is_here_is_not_asked_for(lan: Lan) -> None:
    manifest, theirs = lan.holder()
    source = lan.pc(lan.honest(theirs))
    await lan.pull(manifest, source)
    await lan.pull(manifest, source)
    assert len(lan.dials) == 1


async def test_several_sources_share_the_work(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=20)
    served: dict[str, int] = {"a": 0, "b": 0}

    def counting(name: str) -> Serve:
        async def serve(link: Link) -> None:
            await welcome(link)
            while True:
                digest = await asked(link)
                served[name] += 1
                await link.send(PieceData(digest), stored(theirs, digest))

        return serve

    await lan.pull(manifest, lan.pc(counting("a")), lan.pc(counting("b")))
    assert served["a"] + served["b"] == 21  # the graph and twenty pieces of weights, each once
    assert min(served.values()) > 0


async def test_several_requests_are_in_flight(lan: Lan) -> None:
    """A server that answers only once two requests have come shows that they are not awaited."""
    manifest, theirs = lan.holder(pieces=4)
    _, content = make_files(lan.folder / "copy", pieces=4)
    data = {_digest(piece): piece for piece in pieces_of(content)}

    async def serve(link: Link) -> None:
        await welcome(link)
        left = len(data)
        while left:
            waiting = [await asked(link) for _ in range(min(2, left))]
            left -= len(waiting)
            for digest in reversed(waiting):
                await link.send(PieceData(digest), data[digest])
        await link.receive()

    await lan.pull(manifest, lan.pc(serve))


def _cutting(lan: Lan, theirs: Store, answers: int, cuts: int) -> Serve:
    """Closes the link after so many answers, so many times; then it is honest."""
    left = [cuts]

    async def serve(link: Link) -> None:
        if not left[0]:
            await lan.honest(theirs)(link)
            return
        left[0] -= 1
        await welcome(link)
        for _ in range(answers):
            digest = await asked(link)
            await link.send(PieceData(digest), stored(theirs, digest))

    return serve


@pytest.mark.parametrize("answers", [0, 1, 3, 9])
async def test_a_cut_link_is_dialled_again_and_nothing_is_fetched_twice(
    lan: Lan, answers: int
) -> None:
    """D04."""
    manifest, theirs = lan.holder(pieces=10)
    await lan.pull(manifest, lan.pc(_cutting(lan, theirs, answers, 1)))
    assert len(lan.dials) == 2
    assert lan.waits == [0.5]
    assert [done for done, _ in lan.told] == sorted({done for done, _ in lan.told})


async def test_pieces_renew_the_patience(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=10)
    await lan.pull(manifest, lan.pc(_cutting(lan, theirs, 1, 8)))
    assert len(lan.dials) == 9
    assert set(lan.waits) == {0.5}


async def test_a_silent_link_counts_as_cut(lan: Lan) -> None:
    manifest, theirs = lan.holder()
    silent = [True]

    async def serve(link: Link) -> None:
        if silent.pop() if silent else False:
            await asyncio.Event().wait()
        await lan.honest(theirs)(link)

    await lan.pull(manifest, lan.pc(serve), patience=replace(QUICK, stall_s=0.2))
    assert len(lan.dials) >= 2


async def test_a_source_that_never_answers_is_given_up(lan: Lan) -> None:
    manifest, _ = lan.holder()

    async def serve(link: Link) -> None:
        await greet(link)

    with pytest.raises(PeerLost):
        await lan.pull(manifest, lan.pc(serve))
    assert len(lan.dials) == 3
    assert lan.waits == [0.5, 1.0]


async def test_a_second_source_goes_on_where_the_first_was_lost(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=6)

    async def gone() -> Link:
        raise PeerLost("Nobody answers.")

    await lan.pull(manifest, Source(gone), lan.pc(lan.honest(theirs)))
    assert lan.store.stage_folder(manifest.digest) is not None


async def test_what_an_earlier_pull_left_is_not_asked_again(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=6)
    with pytest.raises(PeerLost):
        await lan.pull(
            manifest,
            lan.pc(_cutting(lan, theirs, 4, 99)),
            patience=replace(QUICK, failures=1),
        )
    lan.told.clear()
    await lan.pull(manifest, lan.pc(lan.honest(theirs)))
    assert lan.told[0][0] > 0


async def test_a_cancelled_pull_lets_go_of_its_folder(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=6)
    stuck = asyncio.Event()

    async def serve(link: Link) -> None:
        await welcome(link)
        digest = await asked(link)
        await link.send(PieceData(digest), stored(theirs, digest))
        stuck.set()
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        pull = tasks.create_task(lan.pull(manifest, lan.pc(serve), patience=Patience()))
        await stuck.wait()
        pull.cancel()
    partials = lan.folder / "mine" / "partial"
    with lan.store.partial(manifest):  # its lock is free: no second folder is needed
        assert [path.name for path in partials.iterdir() if path.is_dir()] == [manifest.digest]


class Gate(ThreadPoolExecutor):
    """Runs jobs; the one with the number `held` is announced, and ends only once it is let go."""

    def __init__(self, held: int) -> None:
        super().__init__(2)
        self._count = 0
        self._held = held
        self._loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.go = threading.Event()

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Any:
        self._count += 1
        if self._count != self._held:
            return super().submit(function, *arguments, **named)
        return super().submit(self._hold, function, *arguments)

    def _hold(self, function: Any, *arguments: Any) -> Any:
        result = function(*arguments)
        self._loop.call_soon_threadsafe(self.reached.set)
        self.go.wait(DEADLINE_S)
        return result


@pytest.mark.parametrize("held", [1, 2, 4, 8], ids=["check", "open", "write", "publish"])
async def test_a_pull_that_is_cancelled_while_a_thread_works_waits_for_it(
    lan: Lan, held: int
) -> None:
    """Else the thread would go on with a lock that nobody releases, or publish behind our back."""
    manifest, theirs = lan.holder(pieces=3)
    with Gate(held) as gate:
        pull = asyncio.create_task(
            pull_stage(manifest, [lan.pc(lan.honest(theirs))], lan.exchange(gate), lambda *_: None)
        )
        async with asyncio.timeout(DEADLINE_S):
            await gate.reached.wait()
            pull.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert pull.done() is (held == 1)  # the check holds nothing
            gate.go.set()
            await asyncio.wait([pull])
        assert pull.cancelled()
    assert (lan.store.stage_folder(manifest.digest) is not None) is (held == 8)
    partials = lan.folder / "mine" / "partial"
    with lan.store.partial(manifest):  # the lock is free: no second folder is needed
        assert {path.name for path in partials.iterdir() if path.is_dir()} == {manifest.digest}


@pytest.mark.slow
async def test_answers_in_total_are_the_stage_and_what_each_cut_lost(lan: Lan) -> None:
    """D04: cut at 10, 50 and 99 %, by closing the server's end in mid-flight."""
    manifest, theirs = lan.holder(pieces=99)
    served: list[Digest] = []
    cuts = [10, 50, 99]

    async def serve(link: Link) -> None:
        await welcome(link)
        while True:
            digest = await asked(link)
            if cuts and len(served) >= cuts[0]:
                del cuts[0]
                return
            served.append(digest)
            await link.send(PieceData(digest), stored(theirs, digest))

    await lan.pull(manifest, lan.pc(serve))
    assert lan.store.verified_folder(manifest.digest) is not None
    assert len(lan.dials) == 4
    pieces = sum(len(file.pieces) for file in manifest.files)
    assert len(served) <= pieces + 3 * Patience().window


def _lying(theirs: Store, lies: int) -> Serve:
    """Wrong bytes, so many times."""
    left = [lies]

    async def serve(link: Link) -> None:
        wanted = await welcome(link)
        while True:
            digest = await asked(link)
            data = bytearray(stored(theirs, digest))
            if left[0]:
                left[0] -= 1
                data[0] ^= 1
            await link.send(PieceData(digest), data)
            await announce(link, wanted)

    return serve


async def test_a_wrong_piece_is_asked_again(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=6)
    await lan.pull(manifest, lan.pc(_lying(theirs, 2)))
    assert lan.store.verified_folder(manifest.digest) is not None


async def test_a_source_with_three_wrong_answers_is_dropped(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=6)
    with pytest.raises(ShardCorrupt, match=r"sent \d wrong answers"):
        await lan.pull(manifest, lan.pc(_lying(theirs, 999)))
    assert lan.store.stage_folder(manifest.digest) is None
    assert len(lan.dials) == 1
    assert lan.bad[:3] == [NodeId("pc1")] * 3


async def test_a_liar_beside_an_honest_source_does_no_harm(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=20)
    await lan.pull(manifest, lan.pc(_lying(theirs, 999)), lan.pc(lan.honest(theirs)))
    assert lan.store.verified_folder(manifest.digest) is not None
    assert set(lan.bad) == {NodeId("pc1")}


async def test_pieces_that_nobody_asked_for_are_a_violation(lan: Lan) -> None:
    manifest, _ = lan.holder()

    async def serve(link: Link) -> None:
        await welcome(link)
        await link.send(PieceData(Digest("b" * 64)), b"unasked")
        await link.receive()

    with pytest.raises(ProtocolViolation, match="not asked for"):
        await lan.pull(manifest, lan.pc(serve))


async def test_each_source_gives_what_it_has(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=8)
    half = Store(lan.folder / "half")
    with half.partial(manifest) as partial:
        _, content = make_files(lan.folder / "copy", pieces=8)
        for data in pieces_of(content)[:4]:
            partial.write(_digest(data), data)
        await lan.pull(manifest, lan.pc(lan.honest(half)), lan.pc(lan.honest(theirs)))
    assert lan.store.verified_folder(manifest.digest) is not None


async def test_a_piece_that_nobody_has_ends_the_pull(lan: Lan) -> None:
    manifest, _ = lan.holder()
    other = Store(lan.folder / "other")
    publish(other, seed=1)
    sources = [lan.pc(lan.honest(other)) for _ in range(3)]
    with pytest.raises(PeerLost, match="No PC that holds"):
        await lan.pull(manifest, *sources)
    assert len(lan.dials) == 3


async def test_no_sources_at_all(lan: Lan) -> None:
    manifest, _ = lan.holder()
    with pytest.raises(PeerLost, match="No PC that holds"):
        await lan.pull(manifest)


@pytest.mark.parametrize("error", [TrustRefused("not of this fleet"), VersionMismatch("too old")])
async def test_a_refusal_is_not_repeated(lan: Lan, error: MeshInferError) -> None:
    manifest, _ = lan.holder()
    dials = []

    async def dial() -> Link:
        dials.append(1)
        raise error

    with pytest.raises(type(error)):
        await lan.pull(manifest, Source(dial))
    assert len(dials) == 1


async def test_a_manifest_that_breaks_the_rules_is_refused_before_anything(lan: Lan) -> None:
    manifest, theirs = lan.holder()
    bad = build_manifest(
        manifest.model,
        manifest.model_digest,
        manifest.units,
        manifest.openvino,
        [replace(manifest.files[0], name="../../escape")],
    )
    with pytest.raises(ShardCorrupt, match="is refused"):
        await lan.pull(bad, lan.pc(lan.honest(theirs)))
    assert lan.dials == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
async def test_a_full_disk_ends_the_pull(lan: Lan) -> None:
    manifest, theirs = lan.holder(pieces=4)
    partial_folder = lan.folder / "mine" / "partial" / manifest.digest

    async def serve(link: Link) -> None:
        weights = partial_folder / "openvino_model.bin"
        weights.unlink()
        weights.symlink_to("/dev/full")
        await lan.honest(theirs)(link)

    with pytest.raises(DiskFull):
        await lan.pull(manifest, lan.pc(serve))
    assert lan.store.stage_folder(manifest.digest) is None


async def test_a_stage_that_is_pulled_anew_gives_no_holes_to_others(lan: Lan) -> None:
    """It was here, was removed, and its folder has its full size again, but nothing in it."""
    manifest, theirs = lan.holder(pieces=4)
    exchange = lan.exchange()
    source = lan.pc(lan.honest(theirs))
    folder = await pull_stage(manifest, [source], exchange, lambda *_: None)
    digests = [digest for file in manifest.files for digest in file.pieces]
    assert exchange.store.holds(digests) == frozenset(digests)
    shutil.rmtree(folder)
    with exchange.store.partial(manifest) as partial:
        assert partial.missing == tuple(digests)
        assert exchange.store.holds(digests) == frozenset()
        assert exchange.store.piece(digests[-1]) is None
