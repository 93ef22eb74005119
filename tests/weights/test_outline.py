from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.ids import ModelId
from meshinfer.core.model import PIECE_BYTES, StageManifest, UnitRange
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.manifest import build_manifest, describe_bytes
from meshinfer.weights.outline import (
    STAGE_BIN,
    STAGE_XML,
    Outline,
    Segment,
    read_outline,
    write_outline,
)
from meshinfer.weights.piece_index import WeightsFile
from tests.weights.stage_maker import MODEL_DIGEST

XML = b"<net/>"
MODEL = bytes(range(256)) * 4096 * 5  # 5 MiB
PADDED = MODEL[5 : 5 + PIECE_BYTES + 100] + bytes(28)
OWN = b"s" * 64 + PADDED[PIECE_BYTES:] + b"n" * 128
PARTS = (b"s" * 64, PADDED, MODEL[77 : 77 + 3 * PIECE_BYTES], b"n" * 128)
SEGMENTS = (Segment(None, 0), Segment(5, 64), Segment(77, None), Segment(None, 192))


def manifest_of(parts: tuple[bytes, ...]) -> StageManifest:
    files = [
        describe_bytes(STAGE_XML, XML),
        describe_bytes(STAGE_BIN, b"".join(parts), [len(part) for part in parts]),
    ]
    return build_manifest(ModelId("m"), MODEL_DIGEST, UnitRange(0, 1), "2026.4.1", files)


@pytest.fixture
def outline(tmp_path: Path) -> Outline:
    (tmp_path / "model.bin").write_bytes(MODEL)
    (tmp_path / "outline").mkdir()
    made = Outline(manifest_of(PARTS), WeightsFile.look(tmp_path / "model.bin"), SEGMENTS)
    write_outline(tmp_path / "outline", made, XML, OWN)
    return made


def test_an_outline_comes_back_as_it_was_written(tmp_path: Path, outline: Outline) -> None:
    assert read_outline(tmp_path / "outline") == outline
    assert outline.usable


def test_every_piece_lies_where_the_outline_says(tmp_path: Path, outline: Outline) -> None:
    stage = {STAGE_XML: b"", STAGE_BIN: b""}
    names = [file.name for file in outline.manifest.files for _ in file.pieces]
    for name, (digest, place) in zip(names, outline.locations(tmp_path / "outline"), strict=True):
        data = place.path.read_bytes()[place.offset : place.offset + place.length]
        assert describe_bytes("a", data).pieces == (digest,)
        stage[name] += data
    assert stage == {STAGE_XML: XML, STAGE_BIN: b"".join(PARTS)}


def test_weights_that_changed_make_it_useless(tmp_path: Path, outline: Outline) -> None:
    (tmp_path / "model.bin").write_bytes(MODEL[:-1])
    assert not read_outline(tmp_path / "outline").usable


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"segments": [[None, 0]]},
        {"segments": [[None, None]] * 4},
        {"segments": [[1, 2, 3]] * 4},
        {"weights": None},
        {"segments": None},
    ],
)
def test_origins_that_do_not_belong_to_the_manifest_are_refused(
    tmp_path: Path, outline: Outline, change: dict[str, Any]
) -> None:
    file = tmp_path / "outline" / "origins.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**content, **change}), encoding="utf-8")
    with pytest.raises(ShardCorrupt, match="cannot be read"):
        read_outline(tmp_path / "outline")


def test_a_folder_without_origins_is_no_outline(tmp_path: Path, outline: Outline) -> None:
    (tmp_path / "outline" / "origins.json").unlink()
    with pytest.raises(ShardCorrupt):
        read_outline(tmp_path / "outline")


@given(st.lists(st.integers(1, 3 * PIECE_BYTES), min_size=1, max_size=6))
def test_pieces_of_any_segments_follow_one_another(sizes: list[int]) -> None:
    """Each from the model, one behind the other: together they are the .bin."""
    total = sum(sizes)
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    file = describe_bytes(STAGE_BIN, bytes(total), sizes)
    manifest = build_manifest(ModelId("m"), MODEL_DIGEST, UnitRange(0, 1), "1", [file])
    segments = tuple(Segment(start, None) for start in starts)
    outline = Outline(manifest, WeightsFile(Path("model.bin"), total, 0), segments)
    places = [place for _, place in outline.locations(Path("outline"))]
    end = 0
    for place in places:
        assert place.offset == end
        end += place.length
    assert end == total
