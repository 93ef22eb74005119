"""`meshinfer verify MODEL` (or a folder): prove that split and whole give the same logits."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from meshinfer.cli.agent import add_json, print_json
from meshinfer.cli.table import table
from meshinfer.core.ids import ModelId
from meshinfer.node.even_cuts import parse_borders
from meshinfer.node.state_folder import StateFolder
from meshinfer.node.verify import verify
from meshinfer.weights.folder import find_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model on this PC, or a folder with its IR")
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 3, 5], metavar="N")
    parser.add_argument("--steps", type=int, default=64, metavar="N", help="decode steps")
    parser.add_argument("--sequences", type=int, default=3, metavar="N", help="at once")
    parser.add_argument("--threads", type=int, default=0, metavar="N")
    parser.add_argument(
        "--cut",
        action="append",
        default=[],
        metavar="BORDERS",
        help="try this cut, such as 0:9:20:62 (numbers of units), instead of even ones; repeatable",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    report = verify(
        source_of(arguments),
        stages=tuple(arguments.stages),
        steps=arguments.steps,
        sequences=arguments.sequences,
        threads=arguments.threads,
        progress=_show,
        borders=[parse_borders(text) for text in arguments.cut],
    )
    if arguments.json:
        print_json(report.to_json())
    else:
        rows = [
            [one["cut"], one["precision"], f"{one['difference']:g}"]
            for one in report.to_json()["checks"]
        ]
        print(table(["stages", "precision", "difference"], rows))
        for line in (*report.not_run, *report.notes):
            print(line)
        largest = report.to_json()["difference"]
        print("Split equals whole." if largest == 0 else f"SPLIT DIFFERS by {largest:g}.")
    return 0 if report.to_json()["difference"] == 0 else 1


def source_of(arguments: argparse.Namespace) -> Path:
    """A folder that exists is taken as it is; anything else is a model of this PC."""
    folder = Path(arguments.model)
    if folder.is_dir():
        return folder
    return find_folder(StateFolder(arguments.state_dir).models, ModelId(arguments.model)).path


def _show(share: float, what: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{share:4.0%} {what}\x1b[K")
        if share >= 1.0:
            sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
