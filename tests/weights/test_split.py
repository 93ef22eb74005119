from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshinfer.core.model import UnitRange
from meshinfer.errors import UsageError
from meshinfer.weights.cut import read_model
from meshinfer.weights.progress import Progress, untold
from meshinfer.weights.split import split
from meshinfer.weights.store import Store
from tests.weights.chain import PagedPart, logits, whole
from tests.weights.conftest import SaveTiny
from tests.weights.model_folder import make_model_folder

RANGES = (UnitRange(0, 3), UnitRange(3, 6), UnitRange(6, 8))

pytestmark = pytest.mark.openvino


def test_stages_lie_in_the_store_with_their_manifests(tmp_path: Path, save_tiny: SaveTiny) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny())
    store = Store(tmp_path / "store")
    told: list[Progress] = []
    manifests = split(folder, RANGES, store, told.append)
    assert [manifest.units for manifest in manifests] == list(RANGES)
    for manifest in manifests:
        assert manifest.model_digest == folder.shape.digest
        stored = store.verify_stage(manifest.digest)
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
def test_stages_from_the_store_give_the_logits_of_the_whole(
    tmp_path: Path, save_tiny: SaveTiny
) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny())
    store = Store(tmp_path / "store")
    manifests = split(folder, RANGES, store, untold)
    paths = [store.verify_stage(manifest.digest) for manifest in manifests]
    stages = [PagedPart(read_model(path / "openvino_model.xml")) for path in paths]
    prompt = np.arange(1, 12, dtype=np.int64)
    assert np.array_equal(logits(stages, prompt, 3), logits(whole(folder.xml), prompt, 3))


def test_a_stage_that_is_there_is_not_cut_again(tmp_path: Path, save_tiny: SaveTiny) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny())
    store = Store(tmp_path / "store")
    manifests = split(folder, RANGES, store, untold)
    folder.xml.unlink()  # it could not be read again
    assert split(folder, RANGES[::-1], store, untold) == manifests[::-1]


def test_another_model_is_not_taken_for_the_same(tmp_path: Path, save_tiny: SaveTiny) -> None:
    store = Store(tmp_path / "store")
    one = make_model_folder(tmp_path / "one", save_tiny())
    two = make_model_folder(tmp_path / "two", save_tiny(seed=1))
    assert split(one, RANGES, store, untold) != split(two, RANGES, store, untold)


def test_equal_splits_on_two_pcs_have_equal_digests(tmp_path: Path, save_tiny: SaveTiny) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny())
    one = split(folder, RANGES, Store(tmp_path / "one"), untold)
    assert split(folder, RANGES, Store(tmp_path / "two"), untold) == one


def test_units_that_the_model_has_not_are_refused(tmp_path: Path, save_tiny: SaveTiny) -> None:
    folder = make_model_folder(tmp_path / "models", save_tiny())
    with pytest.raises(UsageError, match="tiny has 8 units, not 9"):
        split(folder, (UnitRange(0, 9),), Store(tmp_path / "store"), untold)
    assert not (tmp_path / "store").exists()
