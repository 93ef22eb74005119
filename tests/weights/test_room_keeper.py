from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshinfer.core.model import PIECE_BYTES, StageManifest
from meshinfer.errors import DiskFull
from meshinfer.weights.manifest import Placement, placements
from meshinfer.weights.room import EntryKind, StoreLimits
from meshinfer.weights.room_keeper import RoomKeeper
from meshinfer.weights.stage_removal import ScratchFolders
from meshinfer.weights.stage_use import StageUse
from meshinfer.weights.store import Store
from meshinfer.weights.store_folder import StoreFolder
from tests.weights.stage_maker import make_files, publish


def keeper(root: Path, quota: int | None, keep_free: int = 0) -> RoomKeeper:
    use = StageUse(root / "use")
    scratch = ScratchFolders(root / "scratch")
    return RoomKeeper(StoreFolder(root), StoreLimits(quota, keep_free), use, scratch.remove)


def used(root: Path, manifest: StageManifest, when: float) -> None:
    os.utime(root / "use" / f"{manifest.digest}.lock", (when, when))


@pytest.fixture
def stages(tmp_path: Path) -> list[StageManifest]:
    """Three of a little more than a piece, used one after the other."""
    made = [publish(Store(tmp_path), pieces=2, seed=seed)[0] for seed in range(3)]
    for number, manifest in enumerate(made):
        used(tmp_path, manifest, 1000.0 + number)
    return made


def there(root: Path) -> set[str]:
    return {path.name for path in (root / "stages").iterdir()}


def test_everything_in_the_store_is_measured(tmp_path: Path, stages: list[StageManifest]) -> None:
    manifest, _ = make_files(tmp_path / "origin", pieces=4, seed=7)
    with Store(tmp_path).partial(manifest):
        entries = keeper(tmp_path, None).entries()
    assert [one.kind for one in entries] == [EntryKind.STAGE] * 3 + [EntryKind.PARTIAL]
    partial = entries[-1]
    assert partial.size > manifest.size > partial.on_disk  # all that it will have, and holes
    assert {one.stage: one.last_use for one in entries[:3]} == {
        one.digest: 1000.0 + number for number, one in enumerate(stages)
    }


def test_the_longest_unused_makes_room(tmp_path: Path, stages: list[StageManifest]) -> None:
    total = sum(one.size for one in keeper(tmp_path, None).entries())
    with keeper(tmp_path, total + 10).claim(11, 11):
        assert there(tmp_path) == {one.digest for one in stages[1:]}
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_is_in_use_stays(tmp_path: Path, stages: list[StageManifest]) -> None:
    total = sum(one.size for one in keeper(tmp_path, None).entries())
    other = Store(tmp_path)  # another agent
    with other.in_use(stages[0].digest), keeper(tmp_path, total).claim(1, 1):
        assert there(tmp_path) == {stages[0].digest, stages[2].digest}


def test_nothing_is_removed_when_it_would_not_help(
    tmp_path: Path, stages: list[StageManifest]
) -> None:
    with Store(tmp_path).in_use(stages[0].digest):
        with pytest.raises(DiskFull, match=r"2.5 MB are needed .* of 3.2 MB allowed"):
            keeper(tmp_path, 3_200_000).claim(2_500_000, 0).__enter__()
        assert there(tmp_path) == {one.digest for one in stages}


def test_free_space_of_the_disk_is_kept(tmp_path: Path, stages: list[StageManifest]) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(DiskFull, match="allow the store more"):
        keeper(tmp_path, None, keep_free=free + (1 << 40)).claim(1, 1).__enter__()
    with keeper(tmp_path, None, keep_free=free + (1 << 40)).claim(1, 0):
        assert len(there(tmp_path)) == 3


def test_what_is_being_filled_is_neither_counted_nor_removed(tmp_path: Path) -> None:
    manifest, _ = make_files(tmp_path / "origin", pieces=4)
    own = tmp_path / "partial" / manifest.digest
    with Store(tmp_path).partial(manifest):
        pass
    with keeper(tmp_path, manifest.size).claim(manifest.size, 0, own):
        assert own.is_dir()


def test_a_partial_stage_that_nobody_fills_goes_and_one_that_is_filled_stays(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    idle, _ = make_files(tmp_path / "idle", pieces=4, seed=1)
    busy, _ = make_files(tmp_path / "busy", pieces=4, seed=2)
    with store.partial(idle):
        pass
    with store.partial(busy), keeper(tmp_path, 2 * busy.size).claim(busy.size // 2, 0):
        assert [one.name for one in (tmp_path / "partial").iterdir() if one.is_dir()] == [
            busy.digest
        ]


Act = tuple[str, int]
ACTS = st.lists(
    st.tuples(st.sampled_from(["publish", "fetch", "use", "leave"]), st.integers(0, 4)),
    min_size=8,
    max_size=24,
)


@pytest.mark.slow
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(acts=ACTS, room=st.integers(3, 6))
def test_the_quota_holds_and_what_is_in_use_is_never_removed(
    tmp_path_factory: pytest.TempPathFactory, acts: list[Act], room: int
) -> None:
    """Two agents with one store do anything in any order."""
    root = tmp_path_factory.mktemp("store")
    quota = room * PIECE_BYTES  # of 9 that all five stages would have
    agents = [Store(root, limits=StoreLimits(quota, 0)) for _ in range(2)]
    made = [make_files(root / "origin" / str(seed), 2 + seed % 3, seed) for seed in range(5)]
    with ExitStack() as everything:
        held: dict[int, ExitStack] = {}
        for number, (act, seed) in enumerate(acts):
            store, (manifest, content) = agents[number % 2], made[seed]
            try:
                if act == "publish":
                    publish(store, 2 + seed % 3, seed)
                elif act == "fetch":
                    _fetch(store, manifest, content)
                elif act == "use" and seed not in held and store.stage_folder(manifest.digest):
                    held[seed] = everything.enter_context(ExitStack())
                    held[seed].enter_context(store.in_use(manifest.digest))
                elif act == "leave" and seed in held:
                    held.pop(seed).close()
            except DiskFull:
                pass
            kept = sum(one.size for one in keeper(root, None).entries())
            manifests = 64 << 10  # their own few bytes
            assert kept <= quota + manifests
            for one in held:
                assert store.verified_folder(made[one][0].digest) is not None


def _fetch(store: Store, manifest: StageManifest, content: dict[str, bytes]) -> None:
    where: dict[str, Placement] = {one.digest: one for one in placements(manifest)}
    with store.partial(manifest) as partial:
        for digest in partial.missing:
            one = where[digest]
            partial.write(digest, content[one.file][one.offset : one.offset + one.length])
        partial.publish()
