"""PCs that pull the same stage from a leader with a narrow uplink, and from each other.

In virtual time: what takes ten seconds there takes one here, and nothing depends on the machine.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from meshinfer.core.model import StageManifest
from meshinfer.errors import PeerLost
from meshinfer.weights.pull import LONELY_S
from tests.mesh.virtual_time import run_virtual
from tests.weights.hand_server import stored
from tests.weights.stage_maker import flip
from tests.weights.swarm import Pc, Swarm, publish_small

PIECES = 100
RATE = 100_000  # bytes a second: ten pieces
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def swarm(
    followers: int, pieces: int = PIECES, rate: int | None = RATE
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[[Path], None]]:
    """Run a test with a leader that holds a stage and followers that do not."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def main() -> None:
                made = Swarm(tmp_path, followers, rate)
                try:
                    await test(made, publish_small(made.leader.store, pieces))
                finally:
                    await made.close()

            run_virtual(main())

        run.__name__ = test.__name__
        run.__doc__ = test.__doc__
        return run

    return decorate


def payload(pc: Pc) -> int:
    """Bytes that it sent."""
    return sum(len(stored(pc.store, digest)) for digest in pc.sent)


def all_have(made: Swarm, manifest: StageManifest) -> bool:
    return all(pc.store.verified_folder(manifest.digest) for pc in made.followers)


@swarm(followers=1)
async def test_one_follower_takes_what_the_uplink_takes(
    made: Swarm, manifest: StageManifest
) -> None:
    seconds = await made.pull_all(manifest)
    assert seconds == pytest.approx(manifest.size / RATE, rel=0.05)
    assert payload(made.leader) == manifest.size


@swarm(followers=4)
async def test_four_followers_take_no_longer_than_one(made: Swarm, manifest: StageManifest) -> None:
    """The leader sends everything about once; the rest comes from each other."""
    seconds = await made.pull_all(manifest)
    assert all_have(made, manifest)
    assert seconds <= 1.4 * manifest.size / RATE
    assert payload(made.leader) <= 1.3 * manifest.size
    total = payload(made.leader) + sum(map(payload, made.followers))
    assert total <= 4 * manifest.size + 4 * 20_000
    assert max(Counter(made.leader.sent).values()) <= 2


@swarm(followers=4)
async def test_a_follower_that_dies_in_the_middle_holds_up_nobody(
    made: Swarm, manifest: StageManifest
) -> None:
    dying, *rest = made.followers
    pulls = asyncio.create_task(made.pull_all(manifest, *rest))
    death = asyncio.create_task(dying.pull(manifest, made.sources(dying)))
    await asyncio.sleep(4.0)
    death.cancel()
    await made.network.kill(dying.node)
    await asyncio.wait([death])
    seconds = await pulls
    assert seconds <= 1.5 * manifest.size / RATE
    assert payload(made.leader) <= 1.4 * manifest.size


@swarm(followers=4)
async def test_a_follower_that_goes_silent_holds_up_nobody_for_long(
    made: Swarm, manifest: StageManifest
) -> None:
    """Its cable is pulled: what it had promised is asked of others."""
    silent, *rest = made.followers
    pulls = asyncio.create_task(made.pull_all(manifest, *rest))
    lost = asyncio.create_task(silent.pull(manifest, made.sources(silent)))
    await asyncio.sleep(4.0)
    for pc in (made.leader, *rest):
        made.network.cut(silent.node, pc.node)
        made.network.cut(pc.node, silent.node)
    seconds = await pulls
    assert seconds <= manifest.size / RATE + 16.0  # a silence of 15 s is a cut
    lost.cancel()
    await asyncio.wait([lost])


@swarm(followers=3)
async def test_who_joins_in_the_middle_gets_most_of_it_from_the_others(
    made: Swarm, manifest: StageManifest
) -> None:
    *early, late = made.followers
    pulls = asyncio.create_task(made.pull_all(manifest, *early))
    await asyncio.sleep(7.0)
    await made.pull_all(manifest, late)
    seconds = await pulls
    assert seconds <= 1.2 * manifest.size / RATE
    assert payload(made.leader) <= 1.2 * manifest.size


@swarm(followers=2)
async def test_a_source_that_has_nothing_yet_is_a_source(
    made: Swarm, manifest: StageManifest
) -> None:
    """The second knows only the first, who begins later and has all from the leader."""
    first, second = made.followers
    behind = asyncio.create_task(second.pull(manifest, [second.source(first)]))
    ahead = asyncio.create_task(first.pull(manifest, [first.source(made.leader)]))
    await asyncio.gather(ahead, behind)
    assert all_have(made, manifest)
    assert payload(made.leader) == payload(first) == manifest.size


@swarm(followers=2)
async def test_two_that_have_nothing_do_not_wait_for_each_other_for_ever(
    made: Swarm, manifest: StageManifest
) -> None:
    first, second = made.followers
    loop = asyncio.get_running_loop()
    began = loop.time()
    outcomes = await asyncio.gather(
        first.pull(manifest, [first.source(second)]),
        second.pull(manifest, [second.source(first)]),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [PeerLost, PeerLost]
    assert loop.time() - began <= 2 * LONELY_S


@swarm(followers=3)
async def test_followers_finish_without_the_leader_what_they_have_together(
    made: Swarm, manifest: StageManifest
) -> None:
    """It dies when it has given everything once; none of them has it all."""
    pulls = asyncio.create_task(made.pull_all(manifest))
    while len(set(made.leader.sent)) <= PIECES:  # noqa: ASYNC110 - virtual time, and no event
        await asyncio.sleep(0.01)
    assert not all(pc.store.stage_folder(manifest.digest) for pc in made.followers)
    await made.network.kill(made.leader.node)
    await pulls
    assert all_have(made, manifest)


@swarm(followers=3, rate=None)
async def test_one_with_a_bad_disk_is_noted_and_its_pieces_come_from_others(
    made: Swarm, manifest: StageManifest
) -> None:
    bad, *rest = made.followers
    await made.pull_all(manifest, bad)
    folder = bad.store.stage_folder(manifest.digest)
    assert folder is not None
    for piece in range(0, PIECES, 2):
        flip(folder / "openvino_model.bin", piece * 10_000 + 5)
    await made.pull_all(manifest, *rest)
    assert all(pc.store.verified_folder(manifest.digest) for pc in rest)
    noted = Counter(node for pc in rest for node in pc.bad)
    assert set(noted) <= {bad.node}
    assert noted[bad.node] >= 1
    assert bad.store.stage_folder(manifest.digest) is None  # it looked, and took it out of service


@swarm(followers=2, pieces=40, rate=None)
async def test_a_stage_of_another_split_gives_what_it_shares(
    made: Swarm, manifest: StageManifest
) -> None:
    holder, puller = made.followers
    other = publish_small(holder.store, 60)  # the same weights and more of them, another graph
    assert other.digest != manifest.digest
    await puller.pull(manifest, [puller.source(made.leader, spare=True), puller.source(holder)])
    assert puller.store.verified_folder(manifest.digest) is not None
    shared = {digest for file in other.files for digest in file.pieces}
    own = {digest for file in manifest.files for digest in file.pieces} - shared
    assert own <= set(made.leader.sent)
    assert len(holder.sent) >= len(made.leader.sent)


@pytest.mark.parametrize("seed", range(4))
def test_links_that_break_at_any_time_cost_no_more_than_what_was_on_them(
    tmp_path: Path, seed: int
) -> None:
    """D04: what is sent in all is the stages and a window for every cut."""
    chance = random.Random(seed)

    async def main() -> None:
        made = Swarm(tmp_path, 3, RATE, seed)
        manifest = publish_small(made.leader.store, 60)
        pulls = asyncio.create_task(made.pull_all(manifest))
        cuts = 0
        while not pulls.done():
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            links = [link for link in made.network._links if not link.closed]
            if links and cuts < 15:
                await chance.choice(links).close("cut by the test")
                cuts += 1
        await pulls
        assert all_have(made, manifest)
        sent = payload(made.leader) + sum(map(payload, made.followers))
        assert sent <= 3 * manifest.size + cuts * 8 * 10_000
        await made.close()

    run_virtual(main())
