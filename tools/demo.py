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
from meshinfer.core.fleet import Address
from meshinfer.errors import MeshInferError
from meshinfer.node.api_client import ApiClient

# so that `python tools/demo.py` finds its own package
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.free_ports import free_ports

MODEL = "smollm2-135m"
MEMORY = "390MB"
QUESTION = "What is the capital of France?"
START_PATIENCE_S = 180.0
STOP_PATIENCE_S = 15.0


class DemoAgent:
    """One agent process with its folder and ports."""

    def __init__(self, folder: Path, name: str, ports: tuple[int, int]) -> None:
        self.folder = folder / name
        self.name = name
        self.api = Address("127.0.0.1", ports[1])
        self._listen = f"0.0.0.0:{ports[0]}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "agent.log"

    def start(self) -> None:
        words = ["up", "--name", self.name, "--listen", self._listen, "--api", str(self.api)]
        words += ["--memory", MEMORY, "--threads", "1"]
        if self.name == "pc-1":
            words += ["--model", MODEL]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command(*words, folder=self.folder), stdout=log, stderr=log
            )

    def stop(self) -> None:
        """Ask, wait, then insist."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def check(self) -> None:
        """Raises SystemExit with its last words when it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            words = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
            raise SystemExit(f"{self.name} ended: {' / '.join(words)}")


def command(*words: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "meshinfer", words[0], "--state-dir", str(folder), *words[1:]]


def prepare(agents: list[DemoAgent]) -> None:
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
def running(agents: list[DemoAgent]) -> Iterator[None]:
    """The agents' processes, ended however this scope is left."""
    try:
        for agent in agents:
            agent.start()
        yield
    finally:
        print("stopping the three agents ...", flush=True)
        for agent in agents:
            if agent.process is not None:
                agent.process.send_signal(signal.SIGTERM)
        for agent in agents:
            agent.stop()


def wait_until_ready(agents: list[DemoAgent]) -> dict[str, Any]:
    """The status once the model is served; news on the way is printed."""
    client = ApiClient(agents[0].api, None, timeout_s=5.0)
    deadline = time.monotonic() + START_PATIENCE_S
    told: set[str] = set()
    while time.monotonic() < deadline:
        for agent in agents:
            agent.check()
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


def ask(agent: DemoAgent) -> None:
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
    for piece in answer.stream(ApiClient(agent.api, None), body):
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
        DemoAgent(arguments.folder, name, (ports[2 * index], ports[2 * index + 1]))
        for index, name in enumerate(names)
    ]
    prepare(agents)
    print("starting three agents ...", flush=True)
    with running(agents):
        wait_until_ready(agents)
        ask(agents[1])
        status = ApiClient(agents[0].api, None).status()
        print(f"\n{members_table(status)}\n\n{stages_table(status)}\n", flush=True)
        if not arguments.once:
            stay(agents)


def stay(agents: list[DemoAgent]) -> None:
    """Until Ctrl-C."""
    print("The fleet stays up until Ctrl-C. Any of the three answers:")
    for agent in agents:
        print(f"  http://{agent.api}/v1     meshinfer chat --state-dir {agent.folder}")
    try:
        while True:
            for agent in agents:
                agent.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
