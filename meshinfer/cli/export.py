"""`meshinfer export CHECKPOINT --out DIR [--layers A:B]`: make a model's parts without a fleet.

With `--layers` only some of the parts: PCs that share the work copy them into one DIR/parts, and a
last call without it makes what is missing and joins them. The result is a folder for
`meshinfer pull`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from meshinfer.cli.agent import add_json, print_json
from meshinfer.cli.progress import ProgressLine
from meshinfer.errors import UsageError
from meshinfer.weights.export.run import export_checkpoint, export_ranges
from meshinfer.weights.progress import Progress
from meshinfer.weights.recipe import Recipe, WeightFormat

_LAYERS = re.compile(r"(\d+):(\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a folder with safetensors and config.json")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--layers", metavar="A:B", help="only the layers A to B, B not included")
    parser.add_argument(
        "--format", choices=[str(one) for one in WeightFormat], default=str(WeightFormat.INT4_ASYM)
    )
    parser.add_argument("--group-size", type=int, default=128, metavar="N")
    parser.add_argument("--awq", action="store_true", help="scale channels before rounding to INT4")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    recipe = Recipe(WeightFormat(arguments.format), arguments.group_size, arguments.awq)
    layers = read_layers(arguments.layers)
    line = ProgressLine()

    def show(now: Progress) -> None:
        line.show(now.phase, now.done_bytes, now.total_bytes)

    try:
        if layers is None:
            facts = export_checkpoint(arguments.checkpoint, arguments.out, recipe, show)
            answer = {"architecture": facts.architecture, "weights": facts.weights}
            text = f"{facts.architecture}, {facts.weights}: {arguments.out}"
        else:
            missing = export_ranges(arguments.checkpoint, arguments.out, recipe, layers, show)
            left = [str(span) for span in missing]
            answer = {"layers": arguments.layers, "missing": " ".join(left)}
            text = f"Made the layers {arguments.layers}. Still missing: {', '.join(left) or 'none'}"
    finally:
        line.close()
    if arguments.json:
        print_json(answer)
    else:
        print(text)
    return 0


def read_layers(text: str | None) -> tuple[int, int] | None:
    """ "A:B" as numbers. Raises UsageError."""
    if text is None:
        return None
    found = _LAYERS.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        raise UsageError(f"{text!r} is no range of layers.", "Write for example --layers 0:14")
    return int(found[1]), int(found[2])
