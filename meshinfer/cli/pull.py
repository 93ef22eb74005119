"""`meshinfer pull MODEL`: get a model of the catalogue, resumable, every byte checked."""

from __future__ import annotations

import argparse

from meshinfer.cli.agent import add_json, print_json
from meshinfer.cli.progress import ProgressLine
from meshinfer.core.ids import ModelId
from meshinfer.core.units import format_bytes
from meshinfer.node.state_folder import StateFolder, folder_bytes
from meshinfer.weights.folder import prepare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a name of: meshinfer models")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    state = StateFolder(arguments.state_dir)
    line = ProgressLine()
    try:
        folder = prepare(
            ModelId(arguments.model),
            state.models,
            lambda now: line.show(now.phase, now.done_bytes, now.total_bytes),
        )
    finally:
        line.close()
    if state.chosen_model() is None:
        state.choose_model(folder.model)
    size = folder_bytes(folder.path)
    if arguments.json:
        print_json({"model": folder.model, "folder": str(folder.path), "bytes": size})
    else:
        layers = folder.shape.layers
        print(f"{folder.model}: {layers} layers, {format_bytes(size)}, ready to be served.")
    return 0
