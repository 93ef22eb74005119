"""`meshinfer pull SOURCE`: get any model, resumable, every byte checked."""

from __future__ import annotations

import argparse
import sys

from meshinfer.cli.agent import add_json, print_json
from meshinfer.cli.progress import ProgressLine
from meshinfer.core.ids import ModelId
from meshinfer.core.units import format_bytes
from meshinfer.node.state_folder import StateFolder, folder_bytes
from meshinfer.weights.catalogue import Catalogue
from meshinfer.weights.folder import ModelFolder, check_id
from meshinfer.weights.prepare import prepare
from meshinfer.weights.recipe import Recipe, WeightFormat
from meshinfer.weights.source import read_source

_INTERRUPTED = 130  # as a shell says of a program that Ctrl-C ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a name of `meshinfer models`, a repository of the Hugging Face Hub "
        "(org/name[@revision][/file.gguf]), a folder or a .gguf file",
    )
    parser.add_argument("--name", metavar="N", help="what the model is called here")
    parser.add_argument("--file", default="", metavar="F", help="of several .gguf files")
    parser.add_argument("--revision", default="", metavar="R", help="branch, tag or commit")
    parser.add_argument(
        "--format",
        choices=[str(one) for one in WeightFormat],
        help="form of the weights (default: int4-asym; int8 for a small model; an IR stays)",
    )
    parser.add_argument("--group-size", type=int, metavar="N", help="weights a scale, for INT4")
    parser.add_argument("--awq", action="store_true", help="scale channels before rounding to INT4")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    state = StateFolder(arguments.state_dir)
    names = Catalogue.load().names
    source = read_source(
        arguments.source, names, revision=arguments.revision, file=arguments.file
    )  # fmt: skip
    recipe = recipe_of(arguments.format, arguments.group_size, arguments.awq)
    name = ModelId(arguments.name) if arguments.name is not None else None
    if name is not None:
        check_id(name)
    line = ProgressLine()
    try:
        folder = prepare(
            source,
            state.models,
            recipe,
            lambda now: line.show(now.phase, now.done_bytes, now.total_bytes),
            name,
        )
    except KeyboardInterrupt:
        line.close()
        print("Stopped. The same command goes on where it was.", file=sys.stderr)
        return _INTERRUPTED
    finally:
        line.close()
    if state.chosen_model() is None:
        state.choose_model(folder.model)
    _show(folder, arguments.json)
    return 0


def recipe_of(form: str | None, group_size: int | None, awq: bool) -> Recipe | None:
    """What the options ask for; None when nothing was asked. Raises UsageError."""
    if form is None and group_size is None and not awq:
        return None
    usual = Recipe()
    return Recipe(
        WeightFormat(form) if form is not None else usual.format,
        group_size if group_size is not None else usual.group_size,
        awq,
    )


def _show(folder: ModelFolder, as_json: bool) -> None:
    size = folder_bytes(folder.path)
    known = folder.description
    if as_json:
        print_json(
            {
                "model": folder.model,
                "folder": str(folder.path),
                "bytes": size,
                "source": known.source,
                "revision": known.revision,
                "weights": known.weights,
                "accuracy": known.accuracy,
            }
        )
        return
    layers = folder.shape.layers
    print(f"{folder.model}: {layers} layers, {known.weights}, {format_bytes(size)}, ready.")
    if known.accuracy:
        print(f"Repacking cost: {known.accuracy}.")
