"""What the suites about speculation share: fleets with and without a draft, and how fast one
answer, or several at once, came."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshinfer.weights.obtain import catalogue_source
from meshinfer.weights.prepare import prepare
from tools.agent_process import AgentProcess
from tools.benches.bench_fleet import ask_once, ask_together, chat, fleet_of
from tools.benches.options import BenchOptions
from tools.loads.exchange import Answer, Question, Target
from tools.loads.figures import together_per_s

TOKENS = 128
_USERS = itertools.count()
DRAFT = "qwen2.5-coder-0.5b"


@dataclass(frozen=True, slots=True)
class Models:
    """Folders; the small model of quick runs has no draft with its vocabulary."""

    target: Path
    draft: Path | None

    @classmethod
    def of(cls, options: BenchOptions) -> Models:
        def folder(name: str) -> Path:
            source = catalogue_source(name)
            return prepare(source, options.models, None, lambda progress: None).path

        return cls(folder(options.model), None if options.quick else folder(DRAFT))


@contextmanager
def drafted_fleet(
    scratch: Path, models: Models, stages: int, *words: str
) -> Iterator[list[AgentProcess]]:
    """Speculation with all that there is."""
    draft = models.draft.name if models.draft is not None else "none"
    others = () if models.draft is None else (models.draft,)
    with fleet_of(
        scratch, models.target, stages, "--draft", draft, *words, others=others
    ) as agents:
        _wait_for_draft(agents[0], models)
        yield agents


@contextmanager
def plain_fleet(
    scratch: Path, models: Models, stages: int, *words: str
) -> Iterator[list[AgentProcess]]:
    """No draft model; what it is asked for says whether anything else is guessed."""
    with fleet_of(scratch, models.target, stages, "--draft", "none", *words) as agents:
        yield agents


def question(model: str, prompt: str, drafts: int | None, tokens: int = TOKENS) -> Question:
    """Greedy. `drafts` None: as the fleet thinks best, 0: none at all. Each comes from a user of
    its own: what one was answered before is no help."""
    body: dict[str, Any] = chat(model, prompt, tokens) | {"user": f"bench-{next(_USERS)}"}
    if drafts is not None:
        body["speculative_tokens"] = drafts
    return Question(body, keep_text=True)


def speed_of(answer: Answer) -> float:
    """Tokens a second behind the first one."""
    return (answer.tokens - 1) / (answer.marks[-1] - answer.marks[0])


def speed(url: str, asked: Question) -> float:
    return speed_of(ask_once(url, asked))


def together(url: str, asked: Sequence[Question]) -> float:
    """Tokens a second of all answers while all of them come. Ends the bench when one fails."""
    try:
        return together_per_s(asyncio.run(ask_together(Target.parse(url), asked)))
    except ValueError as error:
        raise SystemExit(f"{url}: {error}.") from error


def acceptance(agent: AgentProcess) -> tuple[int, int]:
    """(proposed, accepted) drafts since the plan began."""
    figures = (agent.status().get("serving") or {}).get("speculation") or {}
    return int(figures.get("proposed", 0)), int(figures.get("accepted", 0))


def _wait_for_draft(agent: AgentProcess, models: Models) -> None:
    deadline = time.monotonic() + 120.0
    while models.draft is not None and time.monotonic() < deadline:
        draft = (agent.status().get("plan") or {}).get("draft") or {}
        if draft.get("state") == "serving":
            return
        time.sleep(0.5)
    if models.draft is not None:
        raise SystemExit(f"The draft was not ready in time: {agent.status().get('plan')}")
