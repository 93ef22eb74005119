from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from meshinfer.core.courtesy import STRETCH_BYTES
from meshinfer.weights.piece_bytes import fill, piece_digest

SIZES = [0, 1, STRETCH_BYTES - 1, STRETCH_BYTES, STRETCH_BYTES + 1, 3 * STRETCH_BYTES + 7]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_digest_is_that_of_the_whole(size: int, kind: type) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    assert piece_digest(kind(data)) == hashlib.sha256(data).digest()


def test_wider_items_count_in_bytes() -> None:
    data = memoryview(bytearray(range(240))).cast("I")
    assert piece_digest(data) == hashlib.sha256(bytes(range(240))).digest()


def test_it_reads_from_where_the_file_stands(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    with (tmp_path / "f").open("rb", buffering=0) as file:
        file.seek(3)
        target = memoryview(bytearray(4))
        assert fill(file, target)
        assert target == b"3456"
        assert not fill(file, target)  # three are left
        assert fill(file, target[:0])
