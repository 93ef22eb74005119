"""The pieces of a whole model's large constants: hashed once, kept beside the .bin.

    MODEL/pieces.json    for every large constant the digests of its pieces

With it a split names the pieces of its stages without reading any weights. Made on the first split
and again when the .bin changed. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from meshinfer.core.model import PIECE_BYTES
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.constants import Constant, read_constants
from meshinfer.weights.disk import write_whole
from meshinfer.weights.layout import LARGE_BYTES, padded
from meshinfer.weights.lock import exclusive
from meshinfer.weights.progress import Progress, Tell

INDEX_FILE = "pieces.json"
_FORMAT = 1
_DIGEST_BYTES = 32
_THREADS = min(4, os.cpu_count() or 1)
Span = tuple[int, int]
"""(offset, size) in bytes of a constant in the .bin."""


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """A .bin as it was when it was read; one that was written since is another."""

    path: Path
    size: int  # bytes
    changed: int  # nanoseconds since 1970

    @staticmethod
    def look(path: Path) -> WeightsFile:
        real = path.resolve()
        state = real.stat()
        return WeightsFile(real, state.st_size, state.st_mtime_ns)

    @property
    def unchanged(self) -> bool:
        try:
            return WeightsFile.look(self.path) == self
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class PieceIndex:
    """`constants` are all of the model, by name where a name is theirs alone; `rows` holds the
    digests of the large ones, as a StoredFile has them."""

    weights: WeightsFile
    constants: Mapping[str, Constant]
    rows: Mapping[Span, bytes]


def piece_index(xml: Path, progress: Tell) -> PieceIndex:
    """Of the model at `xml` and the .bin beside it. Raises ShardCorrupt, StageFailed (what the XML
    says of the constants cannot be). A folder that cannot be written keeps no index."""
    weights = WeightsFile.look(xml.with_suffix(".bin"))
    constants = read_constants(xml, weights.size)
    wanted = sorted({(one.offset, one.size) for one in constants if one.size >= LARGE_BYTES})
    file = xml.with_name(INDEX_FILE)
    with contextlib.ExitStack() as held:
        rows = _read(file, weights)
        if not rows.keys() >= set(wanted):
            with contextlib.suppress(OSError):  # read-only: everybody hashes for himself
                held.enter_context(exclusive(file.with_name(f".{INDEX_FILE}.lock")))
                rows = _read(file, weights)  # another process may have made it meanwhile
        if not rows.keys() >= set(wanted):
            rows = _hash_all(weights, wanted, progress)
            with contextlib.suppress(OSError):
                write_whole(file, _to_json(weights, rows).encode())
    return PieceIndex(weights, _by_name(constants), rows)


def digests_of(size: int, read: Callable[[int, int], bytes]) -> bytes:
    """Of the pieces of a large constant with its padding; `read(offset, length)` gives its bytes,
    offsets counted from its own beginning. Raises ShardCorrupt when there are fewer."""
    digests = []
    for start in range(0, padded(size), PIECE_BYTES):
        length = min(PIECE_BYTES, size - start)
        data = read(start, length)
        if len(data) != length:
            raise ShardCorrupt("The model's weights changed while they were read.")
        whole = min(PIECE_BYTES, padded(size) - start)
        digests.append(hashlib.sha256(bytes(data).ljust(whole, b"\0")).digest())
    return b"".join(digests)


def _by_name(constants: Iterable[Constant]) -> dict[str, Constant]:
    found: dict[str, Constant] = {}
    doubled = set()
    for one in constants:
        if one.name in found:
            doubled.add(one.name)
        found[one.name] = one
    return {name: one for name, one in found.items() if name not in doubled}


def _hash_all(weights: WeightsFile, spans: list[Span], progress: Tell) -> dict[Span, bytes]:
    total, done = sum(size for _, size in spans), 0
    rows = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        for span, digests in zip(
            spans, threads.map(partial(_hash, weights.path), spans), strict=True
        ):
            rows[span] = digests
            done += span[1]
            progress(Progress("index", done, total))
    if not weights.unchanged:
        raise ShardCorrupt("The model's weights changed while they were read.", "Try again.")
    return rows


def _hash(path: Path, span: Span) -> bytes:
    begin, size = span
    with path.open("rb", buffering=0) as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(begin + offset)
            return b"".join(_read_all(file.read, length))

        return digests_of(size, read)


def _read_all(read: Callable[[int], bytes | None], length: int) -> Iterator[bytes]:
    while length:
        data = read(length)
        if not data:
            return
        yield data
        length -= len(data)


def _to_json(weights: WeightsFile, rows: Mapping[Span, bytes]) -> str:
    return json.dumps(
        {
            "format": _FORMAT,
            "size": weights.size,
            "changed": weights.changed,
            "constants": [[offset, size, row.hex()] for (offset, size), row in rows.items()],
        }
    )


def _read(file: Path, weights: WeightsFile) -> dict[Span, bytes]:
    """Empty unless it is an index of just this .bin."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        known = (content["format"], content["size"], content["changed"])
        if known != (_FORMAT, weights.size, weights.changed):
            return {}
        rows = {
            (int(offset), int(size)): bytes.fromhex(row)
            for offset, size, row in content["constants"]
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    right = all(
        len(row) == -(-padded(size) // PIECE_BYTES) * _DIGEST_BYTES
        for (_, size), row in rows.items()
    )
    return rows if right else {}
