"""`meshinfer invite`: the join code again, on the PC that founded the fleet."""

from __future__ import annotations

import argparse

from meshinfer.cli.agent import add_json, print_json
from meshinfer.link.identity import invite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    code = invite(arguments.state_dir)
    if arguments.json:
        print_json({"fleet": code.fleet_id, "code": code.reveal()})
    else:
        print(code.reveal())
    return 0
