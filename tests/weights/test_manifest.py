from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshinfer.core.model import PIECE_BYTES, UnitRange
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.manifest import (
    MAX_PIECES,
    MAX_SEGMENTS,
    build_manifest,
    check_manifest,
    describe_bytes,
    describe_file,
    digest_of,
    manifest_from_json,
    manifest_to_json,
    placements,
)
from meshinfer.wire import codec
from tests.weights.stage_maker import make_files


def test_a_file_is_described_by_segments_and_pieces(tmp_path: Path) -> None:
    data = b"x" * PIECE_BYTES + b"tail"
    (tmp_path / "a.bin").write_bytes(data)
    file = describe_file(tmp_path / "a.bin")
    assert (file.name, file.size, file.segments) == ("a.bin", len(data), (len(data),))
    assert file.pieces[1] == hashlib.sha256(b"tail").hexdigest()
    assert describe_bytes("a.bin", data) == file


def test_a_segment_starts_a_row_of_pieces(tmp_path: Path) -> None:
    segments = [b"small", b"y" * (PIECE_BYTES + 1), b"last"]
    (tmp_path / "a.bin").write_bytes(b"".join(segments))
    sizes = [len(one) for one in segments]
    file = describe_file(tmp_path / "a.bin", sizes)
    parts = [segments[0], segments[1][:-1], b"y", segments[2]]
    assert file.pieces == tuple(hashlib.sha256(part).hexdigest() for part in parts)
    assert file.digest != describe_file(tmp_path / "a.bin").digest
    with pytest.raises(ShardCorrupt, match="changed while it was read"):
        describe_file(tmp_path / "a.bin", [*sizes, 1])


def test_an_empty_file_has_no_pieces(tmp_path: Path) -> None:
    (tmp_path / "a.bin").touch()
    assert describe_file(tmp_path / "a.bin").pieces == ()


def test_a_manifest_of_the_largest_size_fits_a_message() -> None:
    assert MAX_SEGMENTS <= codec.MAX_ITEMS
    assert MAX_PIECES * 32 + MAX_SEGMENTS * 9 < 4_000_000


def test_the_digest_does_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    made, _ = make_files(tmp_path)
    again = build_manifest(
        made.model, made.model_digest, made.units, made.openvino, made.files[::-1]
    )
    assert again == made
    check_manifest(made)


def test_the_digest_is_stable_for_ever(tmp_path: Path) -> None:
    """PCs of different versions must find each other's stages."""
    (tmp_path / "a").write_bytes(b"a")
    made, _ = make_files(tmp_path)
    fixed = build_manifest(
        made.model, made.model_digest, made.units, "2026.4.1", [describe_file(tmp_path / "a")]
    )
    text = (
        '{"files":[{"digests":"ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",'
        '"name":"a","segments":[1]}],"format":2,"model":"m",'
        f'"model_digest":"{"a" * 64}","openvino":"2026.4.1","units":[0,1]}}'
    )
    assert fixed.digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [{"model": "n"}, {"model_digest": "b" * 64}, {"units": UnitRange(0, 2)}, {"openvino": "x"}],
)
def test_everything_is_covered_by_the_digest(tmp_path: Path, change: dict[str, Any]) -> None:
    made, _ = make_files(tmp_path)
    altered = replace(made, **change)
    assert digest_of(altered) != made.digest
    with pytest.raises(ShardCorrupt, match="does not have the digest"):
        check_manifest(altered)


def test_json_there_and_back(tmp_path: Path) -> None:
    made, _ = make_files(tmp_path)
    assert manifest_from_json(json.dumps(manifest_to_json(made))) == made


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"format": 2, "files": 3}',
        '{"format": 2, "files": [{"name": "a"}]}',
        '{"format": 2, "files": [{"name": "a", "segments": [Infinity], "digests": ""}]}',
        "[" * 100_000,
    ],
)
def test_json_that_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(ShardCorrupt, match="cannot be read"):
        manifest_from_json(text)


@pytest.mark.parametrize(
    "name",
    ["../../x", "..\\x", "C:\\x", "/etc/x", "a%2e%2e/x", "CON", "a:b", "x\0y", "", "x/../y"],
)
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    """S05; the digest is right, so only the name is wrong."""
    made, _ = make_files(tmp_path)
    bad = build_manifest(
        made.model,
        made.model_digest,
        made.units,
        made.openvino,
        [replace(made.files[0], name=name)],
    )
    with pytest.raises(ShardCorrupt, match="is refused"):
        check_manifest(bad)


@pytest.mark.parametrize(
    "change",
    [
        {"segments": (-1,)},
        {"segments": (1,)},
        {"segments": (1 << 70,)},
        {"segments": ()},
        {"segments": (2 * PIECE_BYTES + 1000, 0)},
        {"segments": (1,) * (MAX_SEGMENTS + 1), "digests": bytes(32) * (MAX_SEGMENTS + 1)},
        {"segments": (PIECE_BYTES,) * MAX_SEGMENTS, "digests": bytes(32) * MAX_SEGMENTS * 2},
        {"digests": b""},
        {"digests": bytes(95)},
        {"digests": bytes(32) * 3},  # one piece of two lengths
    ],
)
def test_sizes_counts_and_digests_must_fit(tmp_path: Path, change: dict[str, Any]) -> None:
    made, _ = make_files(tmp_path)
    weights = next(file for file in made.files if file.name.endswith(".bin"))
    bad = build_manifest(
        made.model, made.model_digest, made.units, made.openvino, [replace(weights, **change)]
    )
    with pytest.raises(ShardCorrupt):
        check_manifest(bad)


@pytest.mark.parametrize("names", [[], ["a", "A"], ["manifest.json"], [f"f{n}" for n in range(65)]])
def test_files_must_have_names_of_their_own(tmp_path: Path, names: list[str]) -> None:
    made, _ = make_files(tmp_path)
    files = [replace(made.files[0], name=name) for name in names]
    bad = build_manifest(made.model, made.model_digest, made.units, made.openvino, files)
    with pytest.raises(ShardCorrupt):
        check_manifest(bad)


def test_more_pieces_than_a_stage_may_have_are_refused(tmp_path: Path) -> None:
    made, _ = make_files(tmp_path)
    count = MAX_PIECES // 2 + 1
    file = replace(made.files[0], segments=(count * PIECE_BYTES,), digests=bytes(32) * count)
    files = [file, replace(file, name="b.bin")]
    bad = build_manifest(made.model, made.model_digest, made.units, made.openvino, files)
    with pytest.raises(ShardCorrupt, match="more than 65536 pieces"):
        check_manifest(bad)


def test_a_manifest_of_the_first_format_is_refused(tmp_path: Path) -> None:
    made, _ = make_files(tmp_path)
    content = manifest_to_json(made)
    del content["format"]
    with pytest.raises(ShardCorrupt, match="cannot be read"):
        manifest_from_json(json.dumps(content))
    with pytest.raises(ShardCorrupt, match="another version"):
        manifest_from_json(json.dumps({**content, "format": 3}))


def test_pieces_lie_one_behind_the_other(tmp_path: Path) -> None:
    made, content = make_files(tmp_path, pieces=2, tail=10)
    found = {(one.file, one.offset): one for one in placements(made)}
    assert {key: one.length for key, one in found.items()} == {
        ("openvino_model.bin", 0): PIECE_BYTES,
        ("openvino_model.bin", PIECE_BYTES): 10,
        ("openvino_model.xml", 0): len(content["openvino_model.xml"]),
    }
