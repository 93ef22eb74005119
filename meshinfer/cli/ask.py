"""`meshinfer ask PROMPT`: one question, the answer streamed to the terminal."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from meshinfer.cli.agent import add_json, client, print_json
from meshinfer.errors import NotReady
from meshinfer.node.api_client import ApiClient


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="the question (default: standard input)")
    parser.add_argument(
        "--max-tokens", type=int, default=1024, metavar="N", help="at most (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T")
    parser.add_argument("--seed", type=int)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    prompt = arguments.prompt if arguments.prompt is not None else sys.stdin.read()
    agent = client(arguments)
    body = request_body(agent, [{"role": "user", "content": prompt}], arguments)
    answer = Answer()
    for piece in answer.stream(agent, body):
        if not arguments.json:
            print(piece, end="", flush=True)
    if arguments.json:
        print_json(answer.document())
    else:
        print(f"\n{answer.summary()}")
    return 0


def request_body(
    agent: ApiClient, messages: list[dict[str, str]], arguments: argparse.Namespace
) -> dict[str, Any]:
    """A chat request for the model that the fleet serves. Raises NotReady when there is none."""
    models = agent.models()
    if not models:
        raise NotReady("The fleet has no model yet.", "Run: meshinfer status")
    body: dict[str, Any] = {
        "model": models[0],
        "messages": messages,
        "temperature": arguments.temperature,
        "stream_options": {"include_usage": True},
    }
    if arguments.max_tokens is not None:
        body["max_tokens"] = arguments.max_tokens
    if arguments.seed is not None:
        body["seed"] = arguments.seed
    return body


class Answer:
    """One streamed answer and its figures."""

    def __init__(self) -> None:
        self.text = ""
        self.finish_reason: str | None = None
        self.usage: dict[str, int] = {}
        self.first_token_s = 0.0
        self.seconds = 0.0

    def stream(self, agent: ApiClient, body: dict[str, Any]) -> Iterator[str]:
        """Pieces of text as they come."""
        started = time.monotonic()
        for chunk in agent.chat(body):
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk["choices"]:
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                piece = choice["delta"].get("content") or ""
                if piece:
                    self.first_token_s = self.first_token_s or time.monotonic() - started
                    self.text += piece
                    yield piece
        self.seconds = time.monotonic() - started

    @property
    def tokens_per_s(self) -> float:
        """Of the decode phase: tokens behind the first, over the time after it."""
        after_first = self.seconds - self.first_token_s
        tokens = self.usage.get("completion_tokens", 0) - 1
        return tokens / after_first if tokens > 0 and after_first > 0 else 0.0

    def summary(self) -> str:
        tokens = self.usage.get("completion_tokens", 0)
        return (
            f"[{tokens} tokens, first after {self.first_token_s:.2f} s, "
            f"{self.tokens_per_s:.1f} tokens/s, {self.finish_reason}]"
        )

    def document(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "first_token_s": round(self.first_token_s, 4),
            "seconds": round(self.seconds, 4),
            "tokens_per_s": round(self.tokens_per_s, 2),
        }
