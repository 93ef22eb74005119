"""A GGUF model on the disk, in one file or in parts, with every tensor's bytes within reach.

A path enters; tensors leave as bytes or as real values, as many rows at a time as asked for.
Called by the conversion. Nothing is mapped: memory follows the rows that are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.gguf_header import GgufHeader, TensorInfo, read_header
from meshinfer.weights.gguf_types import is_known, real_values, row_bytes, type_name

Array = NDArray[Any]

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MOST_PARTS = 4096
_BLOCK_BYTES = 8 << 20
_GET_AGAIN = "Get it again."


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's bytes lie. A vector has one row."""

    path: Path
    start: int
    info: TensorInfo
    row_bytes: int

    @property
    def columns(self) -> int:
        return self.info.shape[0]

    @property
    def rows(self) -> int:
        return prod(self.info.shape[1:])

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes

    def read(self, first: int = 0, count: int | None = None) -> Array:
        """Rows as they are kept, uint8 [rows, row_bytes]. Raises ShardCorrupt (cut short)."""
        count = self.rows - first if count is None else min(count, self.rows - first)
        wanted = count * self.row_bytes
        offset = self.start + first * self.row_bytes
        data = np.fromfile(self.path, np.uint8, wanted, offset=offset)
        if data.size != wanted:
            raise ShardCorrupt(f"{self.path.name} ends within {self.info.name}.", _GET_AGAIN)
        return data.reshape(count, self.row_bytes)

    def values(self, first: int = 0, count: int | None = None) -> Array:
        """Rows as real numbers, f32 [rows, columns]."""
        return real_values(self.read(first, count), self.info.kind)

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """All rows in order as (first row, values): about 8 MB at a time."""
        step = max(1, _BLOCK_BYTES // (4 * self.columns))
        for first in range(0, self.rows, step):
            yield first, self.values(first, step)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """`path` is the first part and has the metadata; `header.tensors` are those of all parts."""

    path: Path
    header: GgufHeader
    places: Mapping[str, Place]
    size: int  # bytes of all parts

    def entry(self, key: str) -> bytes:
        """A metadata entry as the file has it, key and type included."""
        first, end = self.header.spans[key]
        with self.path.open("rb") as file:
            file.seek(first)
            return file.read(end - first)


def open_gguf(path: Path) -> GgufFile:
    """Any part of a model in parts stands for the whole. Raises ShardCorrupt (damaged, a part or
    bytes are missing), StageFailed (a tensor type that nobody can read)."""
    given = read_header(path)
    paths = _parts(path, given)
    headers = [given if one == path else read_header(one) for one in paths]
    places: dict[str, Place] = {}
    for one, header in zip(paths, headers, strict=True):
        size = one.stat().st_size
        for info in header.tensors:
            if info.name in places:
                raise ShardCorrupt(f"{one.name} has the tensor {info.name[:60]} a second time.")
            places[info.name] = _place(one, header, info, size)
    tensors = tuple(place.info for place in places.values())
    total = sum(one.stat().st_size for one in paths)
    return GgufFile(paths[0], replace(headers[0], tensors=tensors), places, total)


def _parts(path: Path, header: GgufHeader) -> list[Path]:
    """All parts of the model, in order."""
    count = header.metadata.get("split.count", 1)
    if not isinstance(count, int) or not 0 <= count <= _MOST_PARTS:
        raise ShardCorrupt(f"{path.name} says that it is one of {str(count)[:20]} parts.")
    if count < 2:
        return [path]
    named = _PART.fullmatch(path.name)
    if named is None or int(named[3]) != count:
        raise ShardCorrupt(
            f"{path.name} is one of {count} parts and its name does not say which.",
            f"Name the parts MODEL-00001-of-{count:05d}.gguf and so on.",
        )
    names = [f"{named[1]}-{number:05d}-of-{named[3]}.gguf" for number in range(1, count + 1)]
    paths = [path.with_name(name) for name in names]
    for one in paths:
        if not one.is_file():
            raise ShardCorrupt(f"{one.name} is missing.", f"Put all {count} parts in one folder.")
    return paths


def _place(path: Path, header: GgufHeader, info: TensorInfo, size: int) -> Place:
    if not is_known(info.kind):
        raise StageFailed(
            f"The GGUF holds {type_name(info.kind)} tensors (such as {info.name[:60]}), "
            "which nothing here reads.",
            "Choose the model in another quantisation.",
        )
    if not info.shape or not all(info.shape):
        raise ShardCorrupt(f"{path.name} has the tensor {info.name[:60]} without values.")
    try:
        place = Place(
            path, header.data_start + info.offset, info, row_bytes(info.kind, info.shape[0])
        )
    except ValueError as error:
        raise ShardCorrupt(f"{info.name[:60]} of {path.name} is unsound: {error}.") from error
    if place.start + place.bytes > size:
        raise ShardCorrupt(
            f"{path.name} is cut short: {info.name[:60]} lies beyond its end.", _GET_AGAIN
        )
    return place
