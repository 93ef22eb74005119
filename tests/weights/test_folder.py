from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.core.ids import ModelId
from meshinfer.errors import ModelNotFound, ShardCorrupt
from meshinfer.weights.description import DESCRIPTION_FILE, from_json, to_json
from meshinfer.weights.folder import find_folder, list_folders, open_folder, verify_folder
from tests.weights.conftest import SaveTiny
from tests.weights.model_folder import make_model_folder
from tests.weights.stage_maker import flip

pytestmark = pytest.mark.openvino


def test_a_folder_says_all_that_others_need(tmp_path: Path, save_tiny: SaveTiny) -> None:
    made = make_model_folder(tmp_path, save_tiny())
    found = find_folder(tmp_path, ModelId("tiny"))
    assert found == made
    shape = found.shape
    assert (shape.layers, shape.hidden_size, shape.vocabulary_size) == (3, 64, 256)
    assert (shape.context_length, len(shape.units)) == (2048, 8)
    assert found.stop_tokens == (2, 7)
    assert found.xml.is_file()
    assert found.created > 0


def test_the_digest_is_that_of_the_files(tmp_path: Path, save_tiny: SaveTiny) -> None:
    one = make_model_folder(tmp_path / "a", save_tiny())
    two = make_model_folder(tmp_path / "b", save_tiny())
    other = make_model_folder(tmp_path / "c", save_tiny(seed=1))
    assert one.shape.digest == two.shape.digest
    assert other.shape.digest != one.shape.digest


def test_altered_files_are_found(tmp_path: Path, save_tiny: SaveTiny) -> None:
    folder = make_model_folder(tmp_path, save_tiny())
    verify_folder(folder)
    flip(folder.path / "openvino_model.bin", 100)
    with pytest.raises(ShardCorrupt, match=r"openvino_model\.bin of tiny was altered"):
        verify_folder(folder)


def test_a_folder_that_is_not_whole_is_not_listed(tmp_path: Path, save_tiny: SaveTiny) -> None:
    make_model_folder(tmp_path, save_tiny(), "whole")
    cut = make_model_folder(tmp_path, save_tiny(), "cut")
    with (cut.path / "openvino_model.bin").open("r+b") as file:
        file.truncate(100)
    (tmp_path / "other").mkdir()
    (tmp_path / ".whole.lock").touch()
    assert [folder.model for folder in list_folders(tmp_path)] == ["whole"]
    with pytest.raises(ShardCorrupt, match="not whole"):
        open_folder(cut.path)
    with pytest.raises(ModelNotFound, match="pull cut"):
        find_folder(tmp_path, ModelId("cut"))


def test_no_models_where_no_folder_is(tmp_path: Path) -> None:
    assert list_folders(tmp_path / "nowhere") == ()
    with pytest.raises(ModelNotFound):
        open_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("model", ["../tiny", "/etc", "a/b", "", "CON"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, model: str) -> None:
    with pytest.raises(ModelNotFound, match="no name of a model"):
        find_folder(tmp_path / "models", ModelId(model))


def test_a_folder_under_another_name_is_not_that_model(tmp_path: Path, save_tiny: SaveTiny) -> None:
    make_model_folder(tmp_path, save_tiny()).path.rename(tmp_path / "renamed")
    with pytest.raises(ModelNotFound):
        find_folder(tmp_path, ModelId("renamed"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"openvino_model.bin"', '"../model.bin"'),
        ('"format": 2', '"format": 3'),
        ('"size": ', '"size": 1'),
        ('"kind": "head"', '"kind": "tail"'),
        ('"units"', '"parts"'),
        ("{", "["),
    ],
)
def test_a_description_that_was_altered_is_refused(
    tmp_path: Path, save_tiny: SaveTiny, old: str, new: str
) -> None:
    folder = make_model_folder(tmp_path, save_tiny())
    text = to_json(folder.description)
    assert old in text
    (folder.path / DESCRIPTION_FILE).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ShardCorrupt, match="Pull it again"):
        open_folder(folder.path)


def test_a_description_there_and_back(tmp_path: Path, save_tiny: SaveTiny) -> None:
    description = make_model_folder(tmp_path, save_tiny()).description
    assert from_json(to_json(description)) == description


def test_a_half_made_folder_is_not_seen(tmp_path: Path, save_tiny: SaveTiny) -> None:
    """Everything but the rename is done when the process is killed."""
    made = make_model_folder(tmp_path, save_tiny())
    made.path.rename(tmp_path / ".tiny.new-x1")
    assert list_folders(tmp_path) == ()
    with pytest.raises(ModelNotFound, match="not on this PC"):
        find_folder(tmp_path, ModelId("tiny"))
