"""What a stage lacks and this PC has elsewhere, copied: from other stages, whole or partial, and
from the models they were cut from. Called by the store before anything is asked of the network.
Blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from meshinfer.core.ids import Digest
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.manifest import PieceLocation, is_digest
from meshinfer.weights.partial_stage import PartialStage
from meshinfer.weights.piece_map import PieceMap, pieces_in
from meshinfer.weights.stage_files import journalled, read_manifest
from meshinfer.weights.store_folder import StoreFolder, folders

Tell = Callable[[int, int], None]
"""Hears (done, total) bytes."""


def fill(stage: PartialStage, pieces: PieceMap, root: StoreFolder, tell: Tell | None) -> None:
    """Every piece's digest is checked; what is wrong or cannot be read stays missing. Raises
    DiskFull."""
    missing = stage.missing
    places = pieces.find_all(missing)
    if len(places) < len(missing):
        for digest, place in _in_partials(root):
            places.setdefault(digest, place)
    done = stage.done_bytes
    for digest in missing:
        if digest not in places:
            continue
        with contextlib.suppress(OSError, EOFError, ShardCorrupt):
            done += stage.copy(digest, places[digest])
        if tell is not None:
            tell(done, stage.total_bytes)


def _in_partials(root: StoreFolder) -> Iterator[tuple[Digest, PieceLocation]]:
    """What partial stages of any process have, as far as their journals say."""
    for folder in folders(root.partials):
        if not is_digest(folder.name.partition(".")[0]):
            continue
        try:
            manifest, noted = read_manifest(folder), journalled(folder)
        except (ShardCorrupt, OSError):
            continue
        for digest, place in pieces_in(folder, manifest):
            if noted is None or digest in noted:
                yield digest, place
