from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.gguf_file import open_gguf
from meshinfer.weights.gguf_header import read_header
from meshinfer.weights.gguf_writer import TensorToWrite, write_gguf
from tests.weights.gguf_models import Q4_0, Q5_0, make_gguf
from tests.weights.gguf_writer import LLAMA, gguf_bytes


def _tensor(name: str, fill: float = 1.0, rows: int = 4) -> TensorToWrite:
    data = np.full((rows, 32), fill, np.float32).tobytes()
    return TensorToWrite(name, (32, rows), 0, lambda: [data])


def test_rows_are_read_in_any_portion(tmp_path: Path) -> None:
    real = make_gguf(tmp_path / "m.gguf", kinds={"ffn_down": Q5_0})
    file = open_gguf(tmp_path / "m.gguf")
    for name in ("blk.1.ffn_down.weight", "token_embd.weight", "blk.0.attn_norm.weight"):
        place = file.places[name]
        assert np.array_equal(place.values().reshape(real[name].shape), real[name])
        assert np.array_equal(np.vstack([part for _, part in place.blocks()]), place.values())
    place = file.places["blk.1.ffn_down.weight"]
    assert np.array_equal(place.values(5, 3), real["blk.1.ffn_down.weight"][5:8])
    assert len(place.values(60, 100)) == place.rows - 60


def test_the_gguf_package_finds_the_same_bytes(tmp_path: Path) -> None:
    make_gguf(tmp_path / "m.gguf")
    file = open_gguf(tmp_path / "m.gguf")
    for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        assert file.places[tensor.name].read().tobytes() == tensor.data.tobytes()


def test_a_file_cut_short_anywhere_is_refused_with_the_tensor(tmp_path: Path) -> None:
    make_gguf(tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    start = read_header(tmp_path / "m.gguf").data_start
    for end in (len(data) - 40, start + 1, start):
        (tmp_path / "m.gguf").write_bytes(data[:end])
        with pytest.raises(ShardCorrupt, match=r"is cut short: .*(weight) lies beyond its end"):
            open_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("tensor", "error", "why"),
    [
        (("t", [64, 1 << 60], Q4_0), ShardCorrupt, "beyond its end"),
        (("t", [1 << 63, 1 << 63, 1 << 63], Q4_0), ShardCorrupt, "beyond its end"),
        (("t", [33], Q4_0), ShardCorrupt, "33 values are no blocks of 32"),
        (("t", [0, 4], Q4_0), ShardCorrupt, "without values"),
        (("t", [], Q4_0), ShardCorrupt, "without values"),
        (("t", [64], 9), StageFailed, "Q8_1 tensors"),
        (("t", [64], 4242), StageFailed, "type 4242 tensors"),
    ],
)
def test_absurd_tensors_are_refused(tmp_path: Path, tensor: Any, error: Any, why: str) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(LLAMA, [tensor]) + bytes(256))
    with pytest.raises(error, match=why):
        open_gguf(tmp_path / "m.gguf")


def test_an_offset_beyond_the_end_is_refused(tmp_path: Path) -> None:
    data = gguf_bytes(LLAMA, [("t", [64], Q4_0)])
    data = data[:-8] + struct.pack("<Q", (1 << 64) - 8)
    (tmp_path / "m.gguf").write_bytes(data + bytes(256))
    with pytest.raises(ShardCorrupt, match="beyond its end"):
        open_gguf(tmp_path / "m.gguf")


def test_a_tensor_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", LLAMA, [_tensor("t"), _tensor("t")])
    with pytest.raises(ShardCorrupt, match="t a second time"):
        open_gguf(tmp_path / "m.gguf")


def _write_parts(folder: Path, count: int = 3) -> list[Path]:
    paths = [folder / f"m-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    for number, path in enumerate(paths):
        metadata = {**(LLAMA if number == 0 else {}), "split.count": count, "split.no": number}
        write_gguf(path, metadata, [_tensor(f"t{number}", number)])
    return paths


def test_any_part_stands_for_the_whole(tmp_path: Path) -> None:
    for path in _write_parts(tmp_path):
        file = open_gguf(path)
        assert file.header.architecture == "llama"
        assert [info.name for info in file.header.tensors] == ["t0", "t1", "t2"]
        assert [file.places[f"t{number}"].values()[0, 0] for number in range(3)] == [0, 1, 2]
        assert file.size == sum(one.stat().st_size for one in tmp_path.iterdir())


def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    paths = _write_parts(tmp_path)
    paths[1].unlink()
    with pytest.raises(ShardCorrupt, match="m-00002-of-00003.gguf is missing"):
        open_gguf(paths[0])


def test_a_part_by_another_name_is_refused(tmp_path: Path) -> None:
    path = _write_parts(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ShardCorrupt, match="one of 3 parts and its name does not say which"):
        open_gguf(path)


@pytest.mark.parametrize("count", [-1, 1 << 20, "three"])
def test_absurd_numbers_of_parts_are_refused(tmp_path: Path, count: Any) -> None:
    metadata = {**LLAMA, "split.count": count if count != -1 else [1]}
    write_gguf(tmp_path / "m.gguf", metadata, [_tensor("t")])
    with pytest.raises(ShardCorrupt, match="parts"):
        open_gguf(tmp_path / "m.gguf")
