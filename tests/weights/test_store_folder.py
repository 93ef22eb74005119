from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest
from meshinfer.weights.store import Store
from meshinfer.weights.store_folder import StoreFolder, folders
from tests.weights.stage_maker import old_manifest, publish


def test_what_is_published_is_listed(tmp_path: Path) -> None:
    digests = {publish(Store(tmp_path), seed=seed)[0].digest for seed in (0, 1)}
    root = StoreFolder(tmp_path)
    (root.stages / "no digest").mkdir()
    assert set(root.published()) == digests
    assert root.outlined() == []
    found = [root.manifest(digest) for digest in root.published()]
    assert {one.digest for one in found if one is not None} == digests


@pytest.mark.parametrize("digest", ["..", "", "A" * 64, "a" * 63 + "/"])
def test_what_is_no_digest_is_never_a_path(tmp_path: Path, digest: str) -> None:
    root = StoreFolder(tmp_path)
    root.stages.mkdir()
    root.outlines.mkdir()
    assert root.stage(Digest(digest)) is None
    assert root.manifest(Digest(digest)) is None
    assert root.outline(Digest(digest)) is None


def test_only_the_format_without_a_name_is_outdated(tmp_path: Path) -> None:
    """A newer one belongs to a newer agent that shares the store."""
    root = StoreFolder(tmp_path)
    kept, _ = publish(Store(tmp_path))
    for parent, name in ((root.stages, "b" * 64), (root.partials, "c" * 64 + ".1")):
        old_manifest(parent / name)
    newer = json.loads((root.stages / kept.digest / "manifest.json").read_text(encoding="utf-8"))
    (root.stages / ("d" * 64)).mkdir()
    (root.stages / ("d" * 64) / "manifest.json").write_text(
        json.dumps({**newer, "format": 3}), encoding="utf-8"
    )
    (root.stages / ("e" * 64)).mkdir()
    assert [path.name[:1] for path in root.outdated()] == ["b", "c"]


def test_no_folder_has_no_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert folders(tmp_path / "nowhere") == folders(tmp_path / "file") == []
