"""`meshinfer models`: what is on this PC, and what the catalogue can get."""

from __future__ import annotations

import argparse

from meshinfer.cli.agent import add_json, print_json
from meshinfer.cli.table import table
from meshinfer.core.units import format_bytes
from meshinfer.node.state_folder import StateFolder, folder_bytes
from meshinfer.weights.catalogue import Catalogue
from meshinfer.weights.folder import list_folders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    here = {one.model: one for one in list_folders(StateFolder(arguments.state_dir).models)}
    rows = []
    for entry in Catalogue.load().entries:
        folder = here.get(entry.model)
        rows.append(
            {
                "id": entry.model,
                "here": folder is not None,
                "bytes": folder_bytes(folder.path) if folder else entry.size,
                "architecture": entry.architecture,
                "licence": entry.licence,
                "note": entry.note,
                "obstacle": entry.obstacle,
            }
        )
    if arguments.json:
        print_json({"models": rows})
        return 0
    lines = [
        [
            str(row["id"]),
            "here" if row["here"] else ("-" if not row["obstacle"] else "not served"),
            format_bytes(int(str(row["bytes"]))),
            str(row["architecture"]),
            str(row["licence"]),
            str(row["obstacle"] or row["note"]),
        ]
        for row in rows
    ]
    print(table(["model", "on this PC", "size", "kind", "licence", "note"], lines))
    return 0
