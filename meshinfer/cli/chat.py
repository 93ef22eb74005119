"""`meshinfer chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys

from meshinfer.cli.agent import client
from meshinfer.cli.ask import Answer, request_body
from meshinfer.errors import MeshInferError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens", type=int, default=1024, metavar="N", help="at most (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.7, metavar="T")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--system", metavar="TEXT", help="instructions for the model")


def run(arguments: argparse.Namespace) -> int:
    agent = client(arguments)
    opening = [{"role": "system", "content": arguments.system}] if arguments.system else []
    messages = list(opening)
    if sys.stdin.isatty():
        print("Empty line or Ctrl-D ends, /new starts over.")
    while (line := _read_line()) and line.strip():
        if line.strip() == "/new":
            messages = list(opening)
            continue
        messages.append({"role": "user", "content": line})
        answer = Answer()
        try:
            for piece in answer.stream(agent, request_body(agent, messages, arguments)):
                print(piece, end="", flush=True)
        except MeshInferError as error:
            # the conversation is kept: the same line can be sent again
            messages.pop()
            print(f"\nmeshinfer: {error}", file=sys.stderr)
            continue
        print(f"\n{answer.summary()}")
        messages.append({"role": "assistant", "content": answer.text})
    return 0


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
