"""`meshinfer models`: what is on this PC, and what the catalogue can get."""

from __future__ import annotations

import argparse
from typing import Any

from meshinfer.cli.agent import add_json, print_json
from meshinfer.cli.table import table
from meshinfer.core.ids import ModelId
from meshinfer.core.units import format_bytes
from meshinfer.node.state_folder import StateFolder, folder_bytes
from meshinfer.weights.catalogue import Catalogue, Entry
from meshinfer.weights.folder import ModelFolder, list_folders
from meshinfer.weights.obtain import label, same_label
from meshinfer.weights.source import CatalogueSource

_HEADS = ("", "model", "on this PC", "size", "weights", "kind", "licence", "note")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    state = StateFolder(arguments.state_dir)
    rows = model_rows(Catalogue.load(), list_folders(state.models), state.chosen_model())
    if arguments.json:
        print_json({"models": rows})
        return 0
    print(table(_HEADS, [_cells(row) for row in rows]))
    if any(row["accuracy"] for row in rows):
        print()
        for row in rows:
            if row["accuracy"]:
                print(f"{row['id']}: {row['accuracy']}")
    return 0


def model_rows(
    catalogue: Catalogue, folders: tuple[ModelFolder, ...], chosen: ModelId | None
) -> list[dict[str, Any]]:
    """One dictionary a model: those on this PC, then the rest of the catalogue. `bytes` is None
    where nobody knows before the hub is asked."""
    entries = {entry.model: entry for entry in catalogue.entries}
    here = [_here(folder, _entry_of(folder, entries), chosen) for folder in folders]
    names = {folder.model for folder in folders}
    return here + [
        _elsewhere(entry, chosen) for name, entry in entries.items() if name not in names
    ]


def _entry_of(folder: ModelFolder, entries: dict[ModelId, Entry]) -> Entry | None:
    """The catalogue's words are for its own models, not for others of the same name."""
    entry = entries.get(folder.model)
    if entry is None:
        return None
    is_it = same_label(folder.description.source, label(CatalogueSource(entry.model)))
    return entry if is_it else None


def _here(folder: ModelFolder, entry: Entry | None, chosen: ModelId | None) -> dict[str, Any]:
    known = folder.description
    return {
        "id": folder.model,
        "here": True,
        "chosen": folder.model == chosen,
        "bytes": folder_bytes(folder.path),
        "weights": known.weights,
        "accuracy": known.accuracy,
        "architecture": known.architecture,
        "licence": entry.licence if entry else "",
        "source": known.source,
        "note": entry.note if entry else known.source,
    }


def _elsewhere(entry: Entry, chosen: ModelId | None) -> dict[str, Any]:
    hub = entry.kind == "hub"
    return {
        "id": entry.model,
        "here": False,
        "chosen": entry.model == chosen,
        "bytes": entry.size or None,
        "weights": "",
        "accuracy": "",
        "architecture": entry.architecture,
        "licence": entry.licence,
        "source": entry.repository if hub else "Python packages",
        "note": f"{entry.note} (hub: {entry.repository})" if hub else entry.note,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        "*" if row["chosen"] else "",
        str(row["id"]),
        "here" if row["here"] else "-",
        format_bytes(row["bytes"]) if row["bytes"] is not None else "not known",
        row["weights"] or "-",
        str(row["architecture"]),
        row["licence"] or "-",
        str(row["note"]),
    ]
