"""`meshinfer split MODEL --stages N --out DIR`: cut a model without a fleet.

Every stage becomes a folder that OpenVINO reads; what DIR has already is not made again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from meshinfer.cli.agent import add_json, print_json
from meshinfer.cli.progress import ProgressLine
from meshinfer.cli.table import table
from meshinfer.core.ids import ModelId
from meshinfer.core.model import UnitRange
from meshinfer.core.units import format_bytes
from meshinfer.node.even_cuts import even_cut
from meshinfer.node.state_folder import StateFolder
from meshinfer.weights.folder import find_folder
from meshinfer.weights.split import split
from meshinfer.weights.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model")
    parser.add_argument("--stages", type=int, required=True, metavar="N")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    folder = find_folder(StateFolder(arguments.state_dir).models, ModelId(arguments.model))
    units = len(folder.shape.units)
    ranges: tuple[UnitRange, ...] = (UnitRange(0, units),)
    if arguments.stages != 1:
        ranges = even_cut(folder.shape.units, arguments.stages, inside_layer=False)
    line = ProgressLine()
    store = Store(arguments.out)
    try:
        manifests = split(
            folder,
            ranges,
            store,
            lambda now: line.show(now.phase, now.done_bytes, now.total_bytes),
        )
        folders = [
            store.assemble(one.digest, lambda done, total: line.show("assemble", done, total))
            for one in manifests
        ]
    finally:
        line.close()
    stages = [
        {
            "stage": index,
            "first": folder.shape.layer_span(one.units)[0],
            "last": folder.shape.layer_span(one.units)[1],
            "units": [one.units.first, one.units.end],
            "bytes": one.size,
            "digest": one.digest,
            "folder": str(path),
        }
        for index, (one, path) in enumerate(zip(manifests, folders, strict=True))
    ]
    if arguments.json:
        print_json({"model": folder.model, "stages": stages})
        return 0
    rows = [
        [
            str(one["stage"]),
            f"{one['first']}-{one['last']}",
            format_bytes(manifest.size),
            str(one["folder"]),
        ]
        for one, manifest in zip(stages, manifests, strict=True)
    ]
    print(table(["stage", "layers", "size", "folder"], rows))
    return 0
