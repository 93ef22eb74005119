"""The agents of a lab: founded, started in the lab's network, waited for, stopped."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meshinfer.core.fleet import Address
from tools.agent_process import AgentProcess, command
from tools.labs.namespaces import host
from tools.labs.network import LabNetwork
from tools.labs.proxy import HIDDEN_HOST, shown_host
from tools.labs.quality import LINK, PROXY, SWITCH, LinkQuality

START_PATIENCE_S = 240.0
_POLL_S = 0.2


def agents_of(folder: Path, ports: list[int]) -> list[AgentProcess]:
    """One PC for each two ports, pinned to the cores in turn."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [
        AgentProcess(
            folder,
            f"pc-{index + 1}",
            (ports[2 * index], ports[2 * index + 1]),
            core=cores[index % len(cores)] if cores else None,
        )
        for index in range(len(ports) // 2)
    ]


def found(agents: list[AgentProcess], *models: Path) -> None:
    """A fleet of their state folders; the first has the models. Folders that exist are kept."""
    first = agents[0].folder
    if not (first / "identity").exists():
        _command(command("init", "--json", folder=first))
    code = _command(command("invite", folder=first))
    for agent in agents[1:]:
        if not (agent.folder / "identity").exists():
            _command(command("join", "--offline", folder=agent.folder), code)
    for model in models:
        if not (first / "models" / model.name).exists():
            shutil.copytree(model, first / "models" / model.name, copy_function=_link_or_copy)


def words_for(method: str, agents: list[AgentProcess], pc: int, quality: LinkQuality) -> list[str]:
    """What `up` of a PC is told about the network. `switch`: mDNS finds the others."""
    agent = agents[pc - 1]
    if method == SWITCH:
        return ["--listen", f"{host(pc)}:{agent.listen}"]
    shown: Callable[[int], str] = shown_host if method == PROXY else lambda _: HIDDEN_HOST
    words = ["--no-mdns", "--listen", f"{HIDDEN_HOST}:{agent.listen}"]
    words += ["--advertise", str(Address(shown(pc), agent.listen))]
    if pc > 1:
        words += ["--peer", str(Address(shown(1), agents[0].listen))]
    if method == LINK:
        words += ["--hop-delay", f"{quality.delay_ms:g}"]
    return words


@contextmanager
def running(
    agents: list[AgentProcess], network: LabNetwork, words: Callable[[int], list[str]]
) -> Iterator[None]:
    """Started with `words` of each PC, ended however this scope is left."""
    with ended(agents):
        for pc, agent in enumerate(agents, 1):
            agent.namespace = network.namespaces.get(pc, "")
            agent.start(*words(pc))
        yield


@contextmanager
def ended(agents: list[AgentProcess]) -> Iterator[None]:
    """What of them was started is stopped, however this scope is left."""
    try:
        yield
    finally:
        for agent in agents:
            agent.ask_to_stop()
        for agent in agents:
            if agent.process is not None:
                agent.stop()


def check(agents: list[AgentProcess]) -> None:
    """Raises SystemExit with the last words of an agent that ended by itself."""
    for agent in agents:
        words = agent.ended()
        if words is not None:
            raise SystemExit(f"{agent.name} ended: {words}")


def wait_ready(agents: list[AgentProcess]) -> None:
    """Until every PC says that the model is served. Raises SystemExit."""
    deadline = time.monotonic() + START_PATIENCE_S
    while time.monotonic() < deadline:
        if all((one.status().get("model") or {}).get("state") == "ready" for one in agents):
            return
        check(agents)
        time.sleep(_POLL_S)
    tails = [line for one in agents for line in one.log.splitlines()[-10:]]
    raise SystemExit("The fleet was not ready in time:\n" + "\n".join(tails))


def _command(words: list[str], text: str = "") -> str:
    """Its output. Raises SystemExit with its error."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words[3:4])} failed: {done.stderr.strip()}")
    return done.stdout


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)
