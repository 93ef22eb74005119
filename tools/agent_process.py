"""An agent as a process of its own, for the demo, the benches and the tests of real fleets."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from meshinfer.core.fleet import Address
from meshinfer.errors import MeshInferError
from meshinfer.node.api_client import ApiClient

STOP_PATIENCE_S = 20.0


class AgentProcess:
    """One `meshinfer up` on its own state folder and ports. `core` pins it and its stages."""

    def __init__(
        self, folder: Path, name: str, ports: tuple[int, int], core: int | None = None
    ) -> None:
        self.folder = folder / name
        self.name = name
        self.listen, self.api_port = ports
        self.api = ApiClient(Address("127.0.0.1", self.api_port), None, timeout_s=120.0)
        self.process: subprocess.Popen[bytes] | None = None
        self.namespace = ""  # of the network, when it is not the machine's
        self._core = core

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.api_port}"

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text(encoding="utf-8", errors="replace")

    def start(self, *words: str) -> None:
        """Once more after `stop` or `kill`: the log goes on."""
        flags = ["--name", self.name, "--listen", f"0.0.0.0:{self.listen}"]
        flags += ["--api", f"127.0.0.1:{self.api_port}", "--threads", "1", *words]
        line = command("up", *flags, folder=self.folder)
        if self.namespace:  # `ip netns exec` becomes the agent, so its process id is the agent's
            line = ["ip", "netns", "exec", self.namespace, *line]
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log)
        if self._core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, {self._core})  # children inherit it

    def ended(self) -> str | None:
        """Its last words when it has ended by itself."""
        if self.process is None or self.process.poll() is None:
            return None
        return " / ".join(self.log.splitlines()[-3:])

    def ask_to_stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Ask, wait, then insist; the exit code."""
        assert self.process is not None
        self.ask_to_stop()
        try:
            return self.process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def kill(self) -> None:
        """Power off: kill -9 of the agent only; its children must notice by themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def status(self) -> dict[str, Any]:
        """Empty while it does not answer."""
        with contextlib.suppress(MeshInferError):
            return self.api.status()
        return {}


def command(*words: str, folder: Path) -> list[str]:
    """A meshinfer command on a state folder, for subprocess."""
    return [sys.executable, "-m", "meshinfer", words[0], "--state-dir", str(folder), *words[1:]]
