"""`meshinfer join`: become a member of a fleet by its code.

The code is read from standard input or asked for without echo; given as an argument it works too,
but then other users of this PC may read it in the list of processes. Unless `--offline` is given a
member is looked for at once, so that a wrong code is told here and now.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import sys

from meshinfer.cli.agent import add_json, print_json
from meshinfer.core.fleet import Address
from meshinfer.errors import UsageError
from meshinfer.link.identity import join
from meshinfer.link.join_code import JoinCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", help="better left out: it is then asked for")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="HOST:PORT", help="a PC of the fleet"
    )
    parser.add_argument("--offline", action="store_true", help="do not look for a member now")
    parser.add_argument("--leave", action="store_true", help="leave the fleet this PC is in")
    parser.add_argument("--wait", type=float, default=5.0, metavar="S", help="look this long")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    code = JoinCode.parse(_read_code(arguments.code))
    peers = _addresses(arguments.peer)
    found = None
    if not arguments.offline:
        from meshinfer.node.introduction import introduce  # aiohttp and zeroconf: 0.3 s to import

        found = asyncio.run(introduce(code, peers, arguments.wait))
    identity = join(arguments.state_dir, code, leave_old=arguments.leave)
    if arguments.json:
        member = str(found) if found else None
        print_json({"fleet": identity.fleet, "node": identity.node, "member": member})
        return 0
    print(f"This PC is {identity.node[:8]} of fleet {identity.fleet[:8]} now.")
    if found:
        print(f"The member at {found} answered.")
    elif not arguments.offline:
        print("No member was found yet; the agent goes on looking (see --peer if it fails).")
    print("Next: meshinfer up")
    return 0


def _read_code(given: str | None) -> str:
    if given is not None:
        return given
    if sys.stdin.isatty():
        return getpass.getpass("Join code (not shown): ")
    return sys.stdin.readline()


def _addresses(words: list[str]) -> tuple[Address, ...]:
    try:
        return tuple(Address.parse(word) for word in words)
    except ValueError as error:
        raise UsageError(f"--peer: {error}.", "Write for example 192.168.1.20:9470.") from error
