"""Real agents: processes with their own state folders, TLS, mDNS or --peer, OpenVINO."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tools.agent_process import AgentProcess, command
from tools.free_ports import free_ports

MODEL = "smollm2-135m"


class RealAgent(AgentProcess):
    """With a look at its children. Stages are not calibrated: that takes half a minute."""

    def start(self, *words: str) -> None:
        super().start("--configuration", "default", *words)

    def children(self) -> list[psutil.Process]:
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def stage_hosts(self) -> list[psutil.Process]:
        """Those of the children; another may be asking the devices."""
        found = []
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                if any("stage_host" in word for word in child.cmdline()):
                    found.append(child)
        return found


def run(
    *words: str, folder: Path, text: str | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        command(*words, folder=folder),
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **(environment or {})},
    )


class RealFleet:
    """A fleet of state folders that trust each other; the first holds the model."""

    def __init__(self, folder: Path, names: tuple[str, ...], model: Path) -> None:
        ports = free_ports(2 * len(names))
        self.agents = [
            RealAgent(folder, name, (ports[2 * index], ports[2 * index + 1]))
            for index, name in enumerate(names)
        ]
        first = self.agents[0]
        done = json.loads(run("init", "--json", folder=first.folder).stdout)
        self.code: str = done["code"]
        for agent in self.agents[1:]:
            joined = run("join", "--offline", folder=agent.folder, text=self.code)
            assert joined.returncode == 0, joined.stderr
        shutil.copytree(model, first.folder / "models" / model.name, copy_function=os.link)

    def start(self, *words: str) -> None:
        self.agents[0].start("--model", MODEL, *words)
        for agent in self.agents[1:]:
            agent.start(*words)

    def until(self, reached: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, f"never: {what}\n{self.logs()}"
            time.sleep(0.05)

    def ready(self, agents: list[RealAgent] | None = None, seconds: float = 60.0) -> None:
        """The model is served, and all of `agents` know it."""
        living = agents or self.agents
        self.until(
            lambda: all(
                (one.status().get("model") or {}).get("state") == "ready" for one in living
            ),
            "ready",
            seconds,
        )

    def logs(self) -> str:
        return "\n".join(f"--- {one.name}\n{one.log[-2000:]}" for one in self.agents)

    def close(self) -> list[int]:
        """Exit codes. Everything that was started is gone afterwards."""
        return [one.stop() for one in self.agents if one.process is not None]


@contextlib.contextmanager
def real_fleet(folder: Path, model: Path, *names: str) -> Iterator[RealFleet]:
    fleet = RealFleet(folder, names, model)
    try:
        yield fleet
    finally:
        fleet.close()


def answer(agent: RealAgent, text: str, max_tokens: int = 24) -> str:
    """Greedy, streamed."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in agent.api.chat(body)
        for choice in chunk["choices"]
    )
