from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshinfer.errors import ShardCorrupt
from meshinfer.weights.safetensors_header import read_header
from tests.weights.safetensors_writer import safetensors_bytes, table_bytes

WHOLE = safetensors_bytes({"a.weight": 6, "b.weight": 2, "empty": 0})


def _write(folder: Path, data: bytes) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(data)
    return path


def test_the_table_is_read_in_the_order_of_the_data(tmp_path: Path) -> None:
    header = read_header(_write(tmp_path, WHOLE))
    assert [(one.name, one.shape, one.begin, one.end) for one in header.tensors] == [
        ("a.weight", (6,), 0, 24),
        ("b.weight", (2,), 24, 32),
        ("empty", (0,), 32, 32),
    ]
    assert header.data_offset == len(WHOLE) - 32


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_file_that_is_cut_anywhere_is_damaged(tmp_path: Path, length: int) -> None:
    with pytest.raises(ShardCorrupt, match=r"model\.safetensors is damaged.*Fetch"):
        read_header(_write(tmp_path, WHOLE[:length]))


def _one(**changed: Any) -> dict[str, Any]:
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changed}}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (table_bytes(_one(), bytes(8), length=1 << 62), "claims"),
        (table_bytes(_one(), bytes(8), length=200), "claims"),
        (table_bytes(_one(), bytes(9)), "1 bytes belong to no tensor"),
        (table_bytes(_one(shape=[3]), bytes(8)), "does not fit"),
        (table_bytes(_one(shape=[2**70]), bytes(8)), "does not fit"),
        (table_bytes(_one(shape=[-2]), bytes(8)), "no plain numbers"),
        (table_bytes(_one(shape=[True, 2]), bytes(8)), "no plain numbers"),
        (table_bytes(_one(shape=[2.0]), bytes(8)), "no plain numbers"),
        (table_bytes(_one(shape=[1] * 40), bytes(8)), "not fit"),
        (table_bytes(_one(data_offsets=[8, 0]), bytes(8)), "does not fit"),
        (table_bytes(_one(data_offsets=[8, 16]), bytes(16)), "gap before"),
        (table_bytes(_one(data_offsets=[0]), bytes(8)), "not complete"),
        (table_bytes(_one(dtype="Q4_K"), bytes(8)), "type 'Q4_K'"),
        (table_bytes({"t": 7}, bytes(8)), "not complete"),
        (table_bytes({**_one(), "u": _one()["t"]}, bytes(8)), "overlaps"),
        (table_bytes(b"[]"), "no table"),
        (table_bytes(b"{"), "cannot be read"),
        (table_bytes(b'{"\xff": 1}'), "cannot be read"),
        (table_bytes(b'{"a":' * 100_000), "cannot be read"),
        (table_bytes(b'{"t": 1, "t": 2}'), "cannot be read"),
        (b"<!DOCTYPE html><html>" * 10, "claims"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(ShardCorrupt, match=words):
        read_header(_write(tmp_path, data))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.binary(max_size=200), st.integers(0, len(WHOLE)))
def test_any_damage_is_told_or_harmless(tmp_path: Path, noise: bytes, place: int) -> None:
    path = _write(tmp_path, WHOLE[:place] + noise + WHOLE[place + len(noise) :])
    with contextlib.suppress(ShardCorrupt):
        header = read_header(path)
        assert all(one.end <= path.stat().st_size - header.data_offset for one in header.tensors)
