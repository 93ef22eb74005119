"""`meshinfer init`: found a fleet on this PC."""

from __future__ import annotations

import argparse

from meshinfer.cli.agent import add_json, print_json
from meshinfer.link.identity import found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="do not print the join code")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    identity = found(arguments.state_dir)
    assert identity.code is not None
    if arguments.json:
        document = {"fleet": identity.fleet, "node": identity.node}
        if not arguments.quiet:
            document["code"] = identity.code.reveal()
        print_json(document)
        return 0
    print(f"Fleet {identity.fleet[:8]} founded; this PC is {identity.node[:8]}.")
    if not arguments.quiet:
        print("\nOn every other PC run   meshinfer join   and give it this code:\n")
        print(f"    {identity.code.reveal()}\n")
        print("Whoever has the code can join and read what the fleet computes: keep it safe.")
    print("Next here: meshinfer up --model smollm2-135m")
    return 0
