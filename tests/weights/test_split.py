from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import StageManifest, UnitRange
from meshinfer.errors import ShardCorrupt, UsageError
from meshinfer.weights.constants import read_constants
from meshinfer.weights.cut import cut, read_model
from meshinfer.weights.folder import ModelFolder
from meshinfer.weights.layout import LARGE_BYTES
from meshinfer.weights.piece_index import INDEX_FILE
from meshinfer.weights.progress import Progress, untold
from meshinfer.weights.split import split
from meshinfer.weights.store import Store
from tests.weights.chain import PagedPart, logits, whole
from tests.weights.conftest import SaveTiny
from tests.weights.model_folder import make_model_folder

RANGES = (UnitRange(0, 3), UnitRange(3, 6), UnitRange(6, 8))
WIDE = {"hidden": 200, "vocabulary": 251}
"""Most weights are over 64 KiB then; the embedding has 200800 bytes, so it needs padding."""

pytestmark = pytest.mark.openvino


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, save_tiny: SaveTiny) -> ModelFolder:
    return make_model_folder(tmp_path_factory.mktemp("wide"), save_tiny(**WIDE))


def contents(xml: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, shape and bytes of every constant of an IR, read without OpenVINO."""
    weights = xml.with_suffix(".bin").read_bytes()
    return {
        one.name: (one.element_type, one.shape, weights[one.offset : one.offset + one.size])
        for one in read_constants(xml, len(weights))
    }


def weight_pieces(manifest: StageManifest) -> set[str]:
    """Of the segments that hold one large constant each."""
    file = next(one for one in manifest.files if one.name.endswith(".bin"))
    small = -(-file.segments[0] // (1 << 20))
    return set(file.pieces[small:])


@pytest.mark.slow
def test_stages_lie_in_the_store_with_their_manifests(tmp_path: Path, save_tiny: SaveTiny) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny())
    store = Store(tmp_path / "store")
    told: list[Progress] = []
    manifests = split(folder, RANGES, store, told.append)
    assert [manifest.units for manifest in manifests] == list(RANGES)
    for manifest in manifests:
        assert manifest.model_digest == folder.shape.digest
        stored = store.assemble(manifest.digest)
        assert stored == store.verify_stage(manifest.digest)
        assert {path.name for path in stored.iterdir()} == {
            "manifest.json",
            "openvino_model.bin",
            "openvino_model.xml",
        }
        weights = next(file for file in manifest.files if file.name.endswith(".bin"))
        planned = folder.shape.weight_bytes(manifest.units)
        assert 0.9 * planned <= weights.size <= 1.1 * planned
    assert told[-1].done_bytes == told[-1].total_bytes > 0


@pytest.mark.slow
def test_cutting_copies_no_large_weights_and_serves_every_piece(
    tmp_path: Path, wide: ModelFolder
) -> None:
    store = Store(tmp_path / "store")
    manifests = split(wide, RANGES, store, untold)
    kept = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*.bin"))
    assert kept < 0.2 * sum(one.size for one in manifests)
    assert store.stage_folder(manifests[0].digest) is None
    for manifest in manifests:
        assert store.manifest(manifest.digest) == manifest
        for file in manifest.files:
            for digest in file.pieces:
                place = store.piece(digest)
                assert place is not None
                data = place.path.read_bytes()[place.offset : place.offset + place.length]
                assert hashlib.sha256(data).hexdigest() == digest


@pytest.mark.slow
def test_an_assembled_stage_has_the_constants_of_the_cut(tmp_path: Path, wide: ModelFolder) -> None:
    """Against what OpenVINO itself saves of the same cut."""
    import openvino as ov

    store = Store(tmp_path / "store")
    for manifest in split(wide, RANGES, store, untold):
        folder = store.assemble(manifest.digest)
        direct = tmp_path / f"{manifest.units.first}.xml"
        ov.save_model(cut(wide.xml, manifest.units), direct, compress_to_fp16=False)
        ours = contents(folder / "openvino_model.xml")
        assert ours == contents(direct)
        assert any(len(data) >= LARGE_BYTES for _, _, data in ours.values())


@pytest.mark.slow
def test_stages_from_the_store_give_the_logits_of_the_whole(
    tmp_path: Path, wide: ModelFolder
) -> None:
    store = Store(tmp_path / "store")
    manifests = split(wide, RANGES, store, untold)
    paths = [store.assemble(manifest.digest) for manifest in manifests]
    stages = [PagedPart(read_model(path / "openvino_model.xml")) for path in paths]
    prompt = np.arange(1, 12, dtype=np.int64)
    assert np.array_equal(logits(stages, prompt, 3), logits(whole(wide.xml), prompt, 3))


@pytest.mark.slow
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bounds=st.lists(st.integers(0, 8), min_size=4, max_size=4))
def test_two_ranges_share_all_pieces_of_their_common_units(
    tmp_path: Path, wide: ModelFolder, bounds: list[int]
) -> None:
    one, two = sorted(bounds[:2]), sorted(bounds[2:])
    common = (max(one[0], two[0]), min(one[1], two[1]))
    if one[0] == one[1] or two[0] == two[1] or common[0] >= common[1]:
        return
    store = Store(tmp_path / "store")
    ranges = [UnitRange(*one), UnitRange(*two), UnitRange(*common)]
    first, second, shared = (weight_pieces(one) for one in split(wide, ranges, store, untold))
    assert shared <= first & second
    assert shared


@pytest.mark.slow
def test_after_another_cut_only_the_new_units_move(tmp_path: Path, wide: ModelFolder) -> None:
    """A PC without the whole model had units 0 to 5 and now gets 2 to 7: two stages' worth of small
    constants and graph, and the weights of two units."""
    leader = Store(tmp_path / "leader")
    old, new = split(wide, (UnitRange(0, 5), UnitRange(2, 7)), leader, untold)
    follower = Store(tmp_path / "follower")
    for manifest in (old, new):
        with follower.partial(manifest) as partial:
            missing = set(partial.missing)
            for digest in partial.missing:
                place = leader.piece(digest)
                assert place is not None
                with place.path.open("rb") as file:
                    file.seek(place.offset)
                    partial.write(digest, file.read(place.length))
            partial.publish()
    assert missing & weight_pieces(new) == weight_pieces(new) - weight_pieces(old)
    assert follower.verified_folder(new.digest) is not None


@pytest.mark.slow
def test_a_stage_that_is_there_is_not_cut_again(tmp_path: Path, save_tiny: SaveTiny) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny())
    store = Store(tmp_path / "store")
    manifests = split(folder, RANGES, store, untold)
    for manifest in manifests:
        store.assemble(manifest.digest)
    folder.xml.unlink()  # it could not be read again
    assert split(folder, RANGES[::-1], store, untold) == manifests[::-1]


def test_an_outline_whose_model_is_gone_is_neither_found_nor_served(
    tmp_path: Path, save_tiny: SaveTiny
) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny(**WIDE))
    store = Store(tmp_path / "store")
    (manifest,) = split(folder, RANGES[:1], store, untold)
    digest = Digest(min(weight_pieces(manifest)))
    assert store.piece(digest) is not None
    folder.xml.with_suffix(".bin").unlink()
    assert store.manifest(manifest.digest) is None
    assert store.find(folder.shape.digest, RANGES[0], manifest.openvino) is None
    assert store.piece(digest) is None
    with pytest.raises(ShardCorrupt, match="not on this PC"):
        store.assemble(manifest.digest)


@pytest.mark.slow
def test_an_outline_is_made_again_when_the_model_came_again(
    tmp_path: Path, save_tiny: SaveTiny
) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny(**WIDE))
    store = Store(tmp_path / "store")
    first = split(folder, RANGES, store, untold)
    weights = folder.xml.with_suffix(".bin")
    shutil.copyfile(weights, tmp_path / "copy")
    (tmp_path / "copy").replace(weights)
    assert store.manifest(first[0].digest) is None
    assert split(folder, RANGES, store, untold) == first
    store.assemble(first[0].digest)


@pytest.mark.slow
def test_a_spoilt_weight_of_the_model_is_noticed_and_not_taken(
    tmp_path: Path, save_tiny: SaveTiny
) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny(**WIDE))
    store = Store(tmp_path / "store")
    (manifest,) = split(folder, RANGES[:1], store, untold)
    weights = folder.xml.with_suffix(".bin")
    state = weights.stat()
    data = bytearray(weights.read_bytes())
    one = next(one for one in read_constants(folder.xml, len(data)) if one.size == 160_000)
    data[one.offset + 7] ^= 1  # of the first attention
    with weights.open("r+b") as file:
        file.write(data)
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))  # a disk tells no time
    with store.partial(manifest) as partial:
        assert len(partial.missing) == 1
        with pytest.raises(ShardCorrupt):
            partial.publish()


@pytest.mark.slow
def test_a_system_without_a_null_device_writes_aside(
    tmp_path: Path, save_tiny: SaveTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny())
    usual = split(folder, RANGES[:1], Store(tmp_path / "one"), untold)
    monkeypatch.setattr(os, "devnull", str(tmp_path / "no folder" / "null"))
    assert split(folder, RANGES[:1], Store(tmp_path / "two"), untold) == usual
    made = [path.name for path in (tmp_path / "two" / "outlines").glob("*/*")]
    assert sorted(made) == ["manifest.json", "openvino_model.xml", "origins.json", "own.bin"]


@pytest.mark.slow
def test_another_model_is_not_taken_for_the_same(tmp_path: Path, save_tiny: SaveTiny) -> None:
    store = Store(tmp_path / "store")
    one = make_model_folder(tmp_path / "one", save_tiny())
    two = make_model_folder(tmp_path / "two", save_tiny(seed=1))
    assert split(one, RANGES, store, untold) != split(two, RANGES, store, untold)


@pytest.mark.slow
def test_equal_splits_on_two_pcs_have_equal_digests(tmp_path: Path, wide: ModelFolder) -> None:
    """Also in another process, which numbers what it makes anew."""
    script = (
        "from pathlib import Path\n"
        "from meshinfer.core.model import UnitRange\n"
        "from meshinfer.weights.folder import open_folder\n"
        "from meshinfer.weights.progress import untold\n"
        "from meshinfer.weights.split import split\n"
        "from meshinfer.weights.store import Store\n"
        f"ranges = [UnitRange(6, 8), UnitRange(0, 3), UnitRange(3, 6)]\n"
        f"folder = open_folder(Path({str(wide.path)!r}))\n"
        f"for one in split(folder, ranges, Store(Path({str(tmp_path / 'two')!r})), untold):\n"
        "    print(one.digest)\n"
    )
    one = split(wide, RANGES, Store(tmp_path / "one"), untold)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    digests = [manifest.digest for manifest in one]
    assert done.stdout.split() == [digests[2], digests[0], digests[1]]


def test_units_that_the_model_has_not_are_refused(tmp_path: Path, save_tiny: SaveTiny) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny())
    with pytest.raises(UsageError, match="tiny has 8 units, not 9"):
        split(folder, (UnitRange(0, 9),), Store(tmp_path / "store"), untold)
    assert not (tmp_path / "store").exists()


def test_a_model_whose_xml_lies_about_its_weights_leaves_the_store_alone(
    tmp_path: Path, save_tiny: SaveTiny
) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny())
    weights = folder.xml.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ShardCorrupt, match="outside the model's .bin"):
        split(folder, RANGES, Store(tmp_path / "store"), untold)
    assert not (tmp_path / "store").exists()
    assert not folder.xml.with_name(INDEX_FILE).exists()


@pytest.mark.slow
def test_the_names_of_folders_may_be_in_any_script(tmp_path: Path, save_tiny: SaveTiny) -> None:
    """W03."""
    made = make_model_folder(tmp_path / "Zoë Łukasz", save_tiny(**WIDE))
    store = Store(tmp_path / "分割 モデル")
    (manifest,) = split(made, RANGES[:1], store, untold)
    assert manifest.model == ModelId("tiny")
    read_model(store.assemble(manifest.digest) / "openvino_model.xml")
