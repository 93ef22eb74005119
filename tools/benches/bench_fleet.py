"""Two one-core PCs as processes: a fleet for the benches, and questions from many users at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.agent_process import AgentProcess, command
from tools.free_ports import free_ports

START_PATIENCE_S = 240.0
PROMPT = "Write a long story about a lighthouse keeper and the sea."


@dataclass(frozen=True, slots=True)
class Load:
    """What so many users at once got."""

    tokens_per_s: float  # all users together, from the first token of the last to start
    first_token_s: float  # mean


@contextmanager
def fleet_of(folder: Path, model: Path, cores: int, *words: str) -> Iterator[list[AgentProcess]]:
    """Agents that serve `model` in as many stages, each pinned to a core of its own."""
    ports = free_ports(2 * cores)
    agents = [
        AgentProcess(folder, f"pc-{index}", (ports[2 * index], ports[2 * index + 1]), core=index)
        for index in range(cores)
    ]
    code = _joined(agents)
    assert code
    shutil.copytree(model, agents[0].folder / "models" / model.name, copy_function=os.link)
    try:
        agents[0].start("--model", model.name, "--no-mdns", "--stages", str(cores), *words)
        peer = ("--peer", f"127.0.0.1:{agents[0].listen}", "--no-mdns")
        for agent in agents[1:]:
            agent.start(*peer, "--stages", str(cores), *words)
        _wait_ready(agents)
        yield agents
    finally:
        for agent in agents:
            agent.ask_to_stop()
        for agent in agents:
            if agent.process is not None:
                agent.stop()


def load(agent: AgentProcess, model: str, users: int, tokens: int) -> Load:
    """`users` streams of `tokens` tokens each, started together.

    Counted is the time in which all of them decode: from the moment when the last one has its first
    token to the end of the first one that ends.
    """
    marks: list[list[float]] = [[] for _ in range(users)]
    started = time.perf_counter()
    threads = [
        threading.Thread(target=_ask, args=(agent, model, tokens, mark, index))
        for index, mark in enumerate(marks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin = max(mark[0] for mark in marks)
    end = min(mark[-1] for mark in marks)
    counted = sum(1 for mark in marks for moment in mark if begin < moment <= end)
    first = sum(mark[0] - started for mark in marks) / users
    return Load(counted / max(end - begin, 1e-9), first)


def _ask(agent: AgentProcess, model: str, tokens: int, marks: list[float], index: int) -> None:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{PROMPT} Number {index}."}],
        "temperature": 0,
        "max_tokens": tokens,
    }
    for chunk in agent.api.chat(body):
        if any(choice["delta"].get("content") is not None for choice in chunk["choices"]):
            marks.append(time.perf_counter())
    marks.pop(0)  # the opening chunk with the role


def _joined(agents: list[AgentProcess]) -> str:
    done = subprocess.run(
        command("init", "--json", folder=agents[0].folder), capture_output=True, check=True
    )
    code = str(json.loads(done.stdout)["code"])
    for agent in agents[1:]:
        subprocess.run(
            command("join", "--offline", folder=agent.folder),
            input=code.encode(),
            capture_output=True,
            check=True,
        )
    return code


def _wait_ready(agents: list[AgentProcess]) -> None:
    deadline = time.monotonic() + START_PATIENCE_S
    while time.monotonic() < deadline:
        if all((one.status().get("model") or {}).get("state") == "ready" for one in agents):
            return
        for agent in agents:
            words = agent.ended()
            if words is not None:
                raise SystemExit(f"{agent.name} ended: {words}")
        time.sleep(0.2)
    raise SystemExit("The fleet was not ready in time:\n" + "\n".join(one.log for one in agents))
