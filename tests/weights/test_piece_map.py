from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from meshinfer.core.ids import Digest
from meshinfer.core.model import UnitRange
from meshinfer.weights.manifest import build_manifest, placements
from meshinfer.weights.piece_map import PieceMap, pieces_in
from meshinfer.weights.store import Store
from meshinfer.weights.store_folder import StoreFolder
from tests.weights.stage_maker import make_files, pieces_of, publish


def digests(content: dict[str, bytes]) -> list[Digest]:
    return [Digest(hashlib.sha256(data).hexdigest()) for data in pieces_of(content)]


def test_pieces_of_every_root_are_found(tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    made = [publish(Store(root), seed=seed) for seed, root in enumerate(roots)]
    pieces = PieceMap([StoreFolder(root) for root in roots])
    for manifest, content in made:
        for digest in digests(content):
            found = pieces.find(digest)
            assert found is not None
            assert found.stage == manifest.digest
    assert set(pieces.find_all(digests(made[0][1]))) == set(digests(made[0][1]))


def test_what_came_later_is_found_and_what_went_is_not(tmp_path: Path) -> None:
    pieces = PieceMap([StoreFolder(tmp_path)])
    manifest, content = make_files(tmp_path / "made")
    first, *_ = digests(content)
    assert pieces.find(first) is None
    publish(Store(tmp_path))
    assert pieces.find(first) is not None
    shutil.rmtree(tmp_path / "stages" / manifest.digest)
    assert pieces.find(first) is None
    assert pieces.find_all([first]) == {}


def test_a_piece_of_two_stages_is_found_until_both_are_gone(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    manifest, content = publish(store)
    again, _ = make_files(tmp_path / "again")
    other = build_manifest(
        again.model, again.model_digest, UnitRange(7, 9), again.openvino, again.files
    )
    store.publish(tmp_path / "again", other)
    pieces = PieceMap([StoreFolder(tmp_path / "store")])
    first, *_ = digests(content)
    for left in range(2, 0, -1):
        found = pieces.find(first)
        assert found is not None, left
        shutil.rmtree(tmp_path / "store" / "stages" / found.stage)
    assert pieces.find(first) is None


def test_pieces_of_a_partial_stage_count_until_it_goes(tmp_path: Path) -> None:
    manifest, _ = make_files(tmp_path / "partial")
    pieces = PieceMap([StoreFolder(tmp_path / "store")])
    place = next(iter(placements(manifest)))
    pieces.keep_partial(manifest.digest, tmp_path / "partial", place)
    found = pieces.find(place.digest)
    assert found is not None
    assert (place.digest, found.place) in pieces_in(tmp_path / "partial", manifest)
    shutil.rmtree(tmp_path / "partial")
    assert pieces.find(place.digest) is None


def test_what_is_no_digest_is_no_piece(tmp_path: Path) -> None:
    assert PieceMap([StoreFolder(tmp_path)]).find(Digest("../x")) is None
