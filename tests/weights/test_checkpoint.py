from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshinfer.errors import MeshInferError, ModelNotFound, ShardCorrupt, StageFailed
from meshinfer.weights.checkpoint import check, look, read_json
from meshinfer.weights.selection import INDEX, Kind
from tests.weights.safetensors_writer import safetensors_bytes

SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


def _sharded(folder: Path, config: Any = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    table = {}
    for number, shard in enumerate(SHARDS):
        (folder / shard).write_bytes(safetensors_bytes({f"w{number}": 4, f"v{number}": 1}))
        table |= {f"w{number}": shard, f"v{number}": shard}
    (folder / INDEX).write_text(json.dumps({"weight_map": table}))
    return folder


def _single(folder: Path, config: Any = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"w": 4}))
    return folder


def test_whole_checkpoints_pass(tmp_path: Path) -> None:
    for folder in (_sharded(tmp_path / "Zoë (v2)"), _single(tmp_path / "one")):
        found = look(folder)
        assert (found.kind, found.path) == (Kind.SAFETENSORS, folder)
        check(found)


def test_a_gguf_file_or_a_folder_with_one(tmp_path: Path) -> None:
    path = tmp_path / "My Model #1.gguf"
    path.write_bytes(b"GGUF")
    for place in (path, tmp_path):
        found = look(place)
        assert (found.kind, found.path) == (Kind.GGUF, path)
        check(found)


@pytest.mark.parametrize("name", ["model.safetensors", "openvino_model.xml", "x.bin"])
def test_one_file_of_a_folder_is_no_model(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelNotFound, match="folder"):
        look(tmp_path / name)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no file or folder"):
        look(tmp_path / "missing")
    with pytest.raises(ModelNotFound, match="There is no model"):
        look(tmp_path)


def _drop(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def _truncate(name: str, length: int) -> Any:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:length])


def _write(name: str, text: str) -> Any:
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_drop("config.json"), r"config\.json is missing"),
        (_write("config.json", "{"), r"config\.json cannot be read"),
        (_write("config.json", "[]"), "no JSON object"),
        (_write("config.json", '{"a":' * 100_000), "cannot be read"),
        (_drop(SHARDS[1]), r"1 of 2 files of weights are missing: model-00002"),
        (_truncate(SHARDS[0], 100), r"model-00001-of-00002\.safetensors is damaged"),
        (_truncate(SHARDS[0], 0), r"is damaged: it has 0 bytes"),
        (_drop(INDEX), "index.json is missing"),
        (_write(INDEX, "{"), "cannot be read"),
        (_write(INDEX, '{"weight_map": {}}'), "names no tensors"),
        (_write(INDEX, '{"weight_map": {"w": "../x.safetensors"}}'), "leaves the folder"),
        (_write(INDEX, '{"weight_map": {"w": "x.bin"}}'), "no safetensors file for w"),
        (_write(INDEX, json.dumps({"weight_map": {"z": SHARDS[0]}})), "does not hold z"),
    ],
)
def test_what_is_missing_or_damaged_is_named(tmp_path: Path, damage: Any, words: str) -> None:
    folder = _sharded(tmp_path / "m")
    damage(folder)
    with pytest.raises(ShardCorrupt, match=words) as caught:
        check(look(folder))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"quant_method": "gptq", "bits": 4}, "GPTQ"),
        ({"quant_method": "awq"}, "AWQ"),
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "fp8"}, "FP8"),
        ({"quant_method": "new"}, "new"),
        ({"bits": 4}, "an unnamed method"),
    ],
)
def test_quantised_checkpoints_are_refused(
    tmp_path: Path, settings: dict[str, Any], name: str
) -> None:
    folder = _single(tmp_path, {"model_type": "llama", "quantization_config": settings})
    with pytest.raises(StageFailed, match=rf"quantised already \({name}\).*original checkpoint"):
        check(look(folder))


def test_json_of_any_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "big.json").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(MeshInferError, match="too large"):
        read_json(tmp_path / "big.json")
