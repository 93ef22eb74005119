"""`make demo`: three agents on this machine, as on three PCs, answer a question together.

Each agent has its own state folder below .demo/ and is allowed too little memory for the whole
model, so that the fleet must split it. Only the first one has the model: the others get their
stages from it over TLS. Nothing is kept outside .demo/, and every process that is started here is
ended here.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshinfer.cli.ask import Answer
from meshinfer.cli.status import members_table, stages_table
from meshinfer.errors import MeshInferError

# so that `python tools/demo.py` finds its own package
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.agent_process import AgentProcess, command
from tools.free_ports import free_ports

MODEL = "smollm2-135m"
MEMORY = "390MB"
QUESTION = "What is the capital of France?"
START_PATIENCE_S = 180.0


def prepare(agents: list[AgentProcess]) -> None:
    """A fleet of three state folders, and the model in the first."""
    first = agents[0]
    if not (first.folder / "identity").exists():
        run("init", "--quiet", folder=first.folder, quiet=True)
    code = run("invite", folder=first.folder, quiet=True)
    for agent in agents[1:]:
        if not (agent.folder / "identity").exists():
            run("join", "--offline", folder=agent.folder, text=code, quiet=True)
    run("pull", MODEL, folder=first.folder)


def run(*words: str, folder: Path, text: str | None = None, quiet: bool = False) -> str:
    """One meshinfer command; its output when `quiet`, else straight to the terminal."""
    done = subprocess.run(
        command(*words, folder=folder),
        input=text.encode() if text is not None else None,
        stdout=subprocess.PIPE if quiet else None,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"meshinfer {words[0]} failed")
    return done.stdout.decode() if quiet else ""


@contextmanager
def running(agents: list[AgentProcess]) -> Iterator[None]:
    """The agents' processes, ended however this scope is left."""
    try:
        for agent in agents:
            model = ["--model", MODEL] if agent is agents[0] else []
            # three agents that share two cores have nothing to calibrate for
            agent.start("--memory", MEMORY, "--configuration", "default", *model)
        yield
    finally:
        print("stopping the three agents ...", flush=True)
        for agent in agents:
            agent.ask_to_stop()
        for agent in agents:
            if agent.process is not None:
                agent.stop()


def wait_until_ready(agents: list[AgentProcess]) -> dict[str, Any]:
    """The status once the model is served; news on the way is printed."""
    client = agents[0].api
    deadline = time.monotonic() + START_PATIENCE_S
    told: set[str] = set()
    while time.monotonic() < deadline:
        check(agents)
        time.sleep(0.1)
        try:
            status = client.status()
        except MeshInferError:
            continue
        for line in news(status):
            if line not in told:
                told.add(line)
                print(f"  {line}", flush=True)
        if status["model"]["state"] == "ready":
            return status
    raise SystemExit(f"The fleet was not ready in {START_PATIENCE_S:.0f} s; see .demo/*/agent.log")


def check(agents: list[AgentProcess]) -> None:
    """Raises SystemExit with the last words of an agent that ended by itself."""
    for agent in agents:
        words = agent.ended()
        if words is not None:
            raise SystemExit(f"{agent.name} ended: {words}")


def news(status: dict[str, Any]) -> Iterator[str]:
    """What is worth a line, in words that repeat as long as nothing changes."""
    names = {member["id"]: member["name"] for member in status["fleet"]["members"]}
    yield f"members: {', '.join(sorted(names.values()))}"
    leader = names.get(status["fleet"]["leader"])
    if leader:
        yield f"leader: {leader} (epoch {status['fleet']['epoch']})"
    if status.get("plan"):
        yield f"plan: {status['plan']['why']}"
        for stage in status["plan"]["pipelines"][0]["stages"]:
            layers = f"layers {stage['first']}-{stage['last']}"
            yield f"{names.get(stage['node'])}: {layers} {stage['phase']}"


def ask(agent: AgentProcess) -> None:
    """The question, the answer as it comes, and its speed."""
    answer = Answer()
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 200,
        "stream_options": {"include_usage": True},
    }
    print(f"\n{QUESTION}  (asked at {agent.name})\n> ", end="", flush=True)
    for piece in answer.stream(agent.api, body):
        print(piece, end="", flush=True)
    print(f"\n{answer.summary()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--once", action="store_true", help="stop after the answer")
    parser.add_argument("--folder", type=Path, default=Path(".demo"))
    arguments = parser.parse_args()
    ports = free_ports(6)
    names = ("pc-1", "pc-2", "pc-3")
    agents = [
        AgentProcess(arguments.folder, name, (ports[2 * index], ports[2 * index + 1]))
        for index, name in enumerate(names)
    ]
    prepare(agents)
    print("starting three agents ...", flush=True)
    with running(agents):
        wait_until_ready(agents)
        ask(agents[1])
        status = agents[0].api.status()
        print(f"\n{members_table(status)}\n\n{stages_table(status)}\n", flush=True)
        if not arguments.once:
            stay(agents)


def stay(agents: list[AgentProcess]) -> None:
    """Until Ctrl-C."""
    print("The fleet stays up until Ctrl-C. Any of the three answers:")
    for agent in agents:
        print(f"  {agent.url}/v1     meshinfer chat --state-dir {agent.folder}")
    try:
        while True:
            check(agents)
            time.sleep(0.5)
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
