from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

import pytest

from meshinfer.core.model import PIECE_BYTES
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.layout import LARGE_BYTES
from meshinfer.weights.piece_index import INDEX_FILE, WeightsFile, digests_of, piece_index
from meshinfer.weights.progress import Progress, untold

SIZES = [4, LARGE_BYTES, 2 * PIECE_BYTES + 100, LARGE_BYTES + 1, LARGE_BYTES - 1]


def make(folder: Path, sizes: list[int] = SIZES, seed: int = 0) -> tuple[Path, list[bytes]]:
    """An XML with constants of these sizes, and their bytes in the .bin behind one another."""
    weights = [random.Random(f"{seed} {size}").randbytes(size) for size in sizes]
    layers, offset = [], 0
    for number, size in enumerate(sizes):
        data = f'element_type="u8" shape="{size}" offset="{offset}" size="{size}"'
        layers.append(f'<layer name="c{number}" type="Const"><data {data}/></layer>')
        offset += size
    (folder / "m.bin").write_bytes(b"".join(weights))
    (folder / "m.xml").write_text(f"<net>{''.join(layers)}</net>", encoding="utf-8")
    return folder / "m.xml", weights


def row(data: bytes) -> bytes:
    whole = data.ljust(-(-len(data) // 64) * 64, b"\0")
    return b"".join(
        hashlib.sha256(whole[start : start + PIECE_BYTES]).digest()
        for start in range(0, len(whole), PIECE_BYTES)
    )


def test_large_constants_are_hashed_piece_by_piece_with_their_padding(tmp_path: Path) -> None:
    xml, weights = make(tmp_path)
    told: list[Progress] = []
    index = piece_index(xml, told.append)
    large = [data for data in weights if len(data) >= LARGE_BYTES]
    assert sorted(index.rows.values()) == sorted(row(data) for data in large)
    assert index.rows[4, LARGE_BYTES] == row(weights[1])
    assert index.constants["c2"].size == SIZES[2]
    assert told[-1].done_bytes == told[-1].total_bytes == sum(len(data) for data in large)


def test_an_index_is_made_once(tmp_path: Path) -> None:
    xml, _ = make(tmp_path)
    first = piece_index(xml, untold)
    told: list[Progress] = []
    assert piece_index(xml, told.append) == first
    assert told == []


@pytest.mark.parametrize("same_size", [True, False])
def test_other_weights_are_hashed_again(tmp_path: Path, same_size: bool) -> None:
    xml, _ = make(tmp_path)
    piece_index(xml, untold)
    xml, weights = make(tmp_path, SIZES if same_size else SIZES[:3], seed=1)
    os.utime(tmp_path / "m.bin", ns=(0, 12345))
    assert piece_index(xml, untold).rows[4, LARGE_BYTES] == row(weights[1])


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"format": 1}', "[" * 50])
def test_an_index_that_is_none_is_made_again(tmp_path: Path, text: str) -> None:
    xml, _ = make(tmp_path)
    first = piece_index(xml, untold)
    (tmp_path / INDEX_FILE).write_text(text, encoding="utf-8")
    assert piece_index(xml, untold) == first
    assert json.loads((tmp_path / INDEX_FILE).read_text(encoding="utf-8"))["format"] == 1


def test_an_index_that_lacks_a_constant_or_a_digest_is_made_again(tmp_path: Path) -> None:
    xml, _ = make(tmp_path)
    first = piece_index(xml, untold)
    good = json.loads((tmp_path / INDEX_FILE).read_text(encoding="utf-8"))
    for constants in (good["constants"][:1], [[*one[:2], ""] for one in good["constants"]]):
        text = json.dumps({**good, "constants": constants})
        (tmp_path / INDEX_FILE).write_text(text, encoding="utf-8")
        assert piece_index(xml, untold) == first


def test_a_folder_that_cannot_be_written_keeps_none(tmp_path: Path) -> None:
    """A folder of that name stands for one on read-only media: the index cannot be put there."""
    xml, weights = make(tmp_path)
    (tmp_path / INDEX_FILE).mkdir()
    (tmp_path / f".{INDEX_FILE}.lock").mkdir()
    assert piece_index(xml, untold).rows[4, LARGE_BYTES] == row(weights[1])


def test_a_name_that_two_constants_have_is_nobodys(tmp_path: Path) -> None:
    xml, _ = make(tmp_path)
    xml.write_text(xml.read_text(encoding="utf-8").replace('"c1"', '"c2"'), encoding="utf-8")
    assert sorted(piece_index(xml, untold).constants) == ["c0", "c3", "c4"]


def test_weights_are_unchanged_until_they_are_written_or_gone(tmp_path: Path) -> None:
    make(tmp_path)
    looked = WeightsFile.look(tmp_path / "m.bin")
    assert looked.unchanged
    os.utime(tmp_path / "m.bin", ns=(0, 12345))
    assert not looked.unchanged
    (tmp_path / "m.bin").unlink()
    assert not looked.unchanged


def test_bytes_that_are_missing_are_no_zeros() -> None:
    with pytest.raises(ShardCorrupt, match="changed while they were read"):
        digests_of(100, lambda offset, length: bytes(99))
