"""The command line: finds the command's file, turns errors into one line and an exit code.

Exit 0; 1 with one line on standard error: the cause, then what to do; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import NoReturn

from meshinfer import __version__
from meshinfer.errors import MeshInferError, UsageError
from meshinfer.node.settings import default_state_dir

COMMANDS = {
    "up": "run this PC's agent in the foreground",
    "init": "found a fleet on this PC and print its join code",
    "invite": "print the fleet's join code again",
    "join": "join a fleet by its code",
    "status": "who is in the fleet, who leads, who holds which layers, how fast it is",
    "plan": "the plan that serves now, and why",
    "models": "models on this PC and in the catalogue",
    "pull": "get a model",
    "export": "turn a safetensors checkpoint into a model, or some of its layers",
    "split": "cut a model into stages, without a fleet",
    "verify": "prove that split and whole give the same logits",
    "ask": "one question to the fleet",
    "chat": "talk to the fleet",
}
"""Each is a module of this package with `add_arguments(parser)` and `run(arguments) -> int`."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands. A command's module is imported when its arguments are needed."""
    parser = argparse.ArgumentParser(
        prog="meshinfer",
        description="One language model over the idle AI PCs of an office.",
    )
    parser.add_argument("--version", action="version", version=f"meshinfer {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        command.add_argument(
            "--state-dir",
            type=Path,
            default=default_state_dir(),
            metavar="DIR",
            help="this PC's state (default: %(default)s)",
        )
    return parser


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = build_parser()
    name = next((word for word in arguments if word in COMMANDS), None)
    if name is not None:
        commands = next(
            action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
        )
        module = importlib.import_module(f"meshinfer.cli.{name}")
        module.add_arguments(commands.choices[name])
    return parser.parse_args(arguments)


def run(arguments: list[str]) -> int:
    """The exit code of one command."""
    try:
        parsed = _parse(arguments)
        module = importlib.import_module(f"meshinfer.cli.{parsed.command}")
        code: int = module.run(parsed)
    except UsageError as error:
        print(f"meshinfer: {error}", file=sys.stderr)
        return 2
    except MeshInferError as error:
        print(f"meshinfer: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; nothing to say to it
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return code


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:]))
