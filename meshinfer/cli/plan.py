"""`meshinfer plan`: the plan that serves now, and why."""

from __future__ import annotations

import argparse

from meshinfer.cli.agent import add_json, client, print_json
from meshinfer.cli.status import stages_table
from meshinfer.core.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    document = client(arguments, timeout_s=5.0).status()
    if arguments.json:
        print_json({"plan": document.get("plan"), "no_plan": document.get("no_plan")})
        return 0
    no_plan = document.get("no_plan")
    if document.get("plan"):
        print(stages_table(document))
    elif no_plan:
        print(f"{no_plan['why']}")
        names = {member["id"]: member["name"] for member in document["fleet"]["members"]}
        for room in no_plan["rooms"]:
            print(f"  {names.get(room['node'], room['node'][:8])}: {format_bytes(room['room'])}")
    else:
        print("There is no plan yet. Run: meshinfer status")
    return 0
