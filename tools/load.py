"""Load for any OpenAI-compatible server: `python tools/load.py URL --model NAME --users 16`.

A closed loop (`--users`, each asks again after its answer and a think time) or an open one
(`--rate`, Poisson arrivals). One thread and a few microseconds a token: it may share a core with
what it measures. Exit 1 when nothing was answered, or `--check words` found a foreign word.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

# so that `python tools/load.py` finds its own package
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.loads.arrivals import ThinkTime
from tools.loads.exchange import Question, Target
from tools.loads.figures import Figures, figures_of
from tools.loads.mix import Kind, pick, prompt_of
from tools.loads.spread import Spread
from tools.loads.users import Asked, Crowd, Extent
from tools.loads.words import foreign_words, new_word, question

DEFAULT_KINDS = (Kind(3, 40, 120), Kind(2, 200, 60), Kind(1, 800, 30))
"""Chats, and fewer questions about longer texts."""


def main() -> None:
    arguments = _parser().parse_args()
    if (arguments.users is None) == (arguments.rate is None):
        _parser().error("give --users N (closed loop) or --rate R (open loop)")
    if arguments.duration is None and arguments.requests is None:
        arguments.duration = 30.0
    asker = Asker(arguments)
    crowd = Crowd(
        Target.parse(arguments.url, arguments.key),
        asker.next,
        Extent(
            arguments.duration, arguments.requests, arguments.patience, arguments.on_429 == "wait"
        ),
        arguments.seed,
    )
    if arguments.users is not None:
        seconds = asyncio.run(crowd.closed(arguments.users, arguments.think))
    else:
        seconds = asyncio.run(crowd.open(arguments.rate))
    figures = figures_of(crowd.asked, seconds, crowd.dropped)
    document: dict[str, Any] = asdict(figures)
    if arguments.check == "words":
        document["words"] = asker.check(crowd.asked)
    if arguments.json:
        print(json.dumps(document))
    else:
        print("\n".join(lines_of(figures, document.get("words"))))
    raise SystemExit(figures.answered == 0 or bool((document.get("words") or {}).get("foreign")))


class Asker:
    """Makes the questions of a run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._chance = random.Random(arguments.seed)
        self._words: set[str] = set()
        self._kinds = tuple(arguments.kind or DEFAULT_KINDS)

    def next(self) -> Question:
        kind = pick(self._kinds, self._chance)
        checks = self._arguments.check == "words"
        text = (
            question(new_word(self._chance, self._words))
            if checks
            else prompt_of(kind.prompt, self._chance)
        )
        body: dict[str, Any] = {
            "model": self._arguments.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": kind.answer,
        }
        if not self._arguments.no_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        leaves = self._chance.random() < self._arguments.leave
        after = self._chance.randint(1, kind.answer) if leaves else None
        return Question(body, keep_text=checks, leave_after=after)

    def check(self, asked: list[Asked]) -> dict[str, int]:
        """How many answers repeat their word, and how many hold a word of somebody else."""
        repeated = foreign = 0
        for one in asked:
            own = one.question.body["messages"][0]["content"].split('"')[1]
            repeated += own in one.answer.text.lower()
            foreign += bool(foreign_words(one.answer.text, own, self._words))
        return {"repeated": repeated, "foreign": foreign}


def lines_of(figures: Figures, words: dict[str, int] | None) -> list[str]:
    """For people; times in milliseconds."""
    lines = [
        f"{figures.answered} of {figures.requests} answered in {figures.seconds:.1f} s, "
        f"{figures.tokens} tokens, {figures.tokens_per_s:.1f} tokens/s",
        *_spread_line("first token", figures.first_token_s),
        *_spread_line("between tokens", figures.between_tokens_s),
        *_spread_line("whole answer", figures.whole_answer_s),
    ]
    if figures.busy or figures.dropped:
        lines.append(f"429 (busy): {figures.busy}, not sent: {figures.dropped}")
    lines += [f"fault: {kind}: {count}" for kind, count in sorted(figures.faults.items())]
    if words is not None:
        lines.append(f"words: {words['repeated']} repeated, {words['foreign']} answers with others")
    return lines


def _spread_line(name: str, found: Spread | None) -> list[str]:
    if found is None:
        return []
    parts = (("p50", found.p50), ("p90", found.p90), ("p99", found.p99), ("max", found.most))
    return [f"{name:15} " + "  ".join(f"{label} {value * 1000:9.1f} ms" for label, value in parts)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", help="http://HOST:PORT")
    parser.add_argument("--model", required=True)
    parser.add_argument("--key", help="API key")
    parser.add_argument("--users", type=int, metavar="N", help="closed loop")
    parser.add_argument("--think", type=ThinkTime.parse, default=ThinkTime(), metavar="exp:SECONDS")
    parser.add_argument("--rate", type=float, metavar="R", help="open loop: arrivals a second")
    parser.add_argument("--kind", type=Kind.parse, action="append", metavar="WEIGHT:PROMPT:ANSWER")
    parser.add_argument("--duration", type=float, metavar="SECONDS")
    parser.add_argument("--requests", type=int, metavar="N")
    parser.add_argument("--patience", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--on-429", choices=("wait", "count"), default="wait")
    parser.add_argument("--leave", type=float, default=0.0, metavar="SHARE", help="who hang up")
    parser.add_argument("--check", choices=("words",))
    parser.add_argument("--no-stream", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    main()
