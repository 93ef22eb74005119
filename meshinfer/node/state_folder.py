"""The folder that an agent owns while it runs, and what other commands find there.

identity/       key, certificate, fleet (link/identity.py)
models/         models of this PC
store/          stages
compiled/       what devices made of stages (engine/compiled_cache.py)
agent.lock      held by the running agent
agent.json      its process id and API address
incarnation     how often an agent has started here
model           the model that this PC was told to serve
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from meshinfer.core.ids import ModelId
from meshinfer.errors import NotReady, UsageError


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """How to reach the agent of a state folder."""

    pid: int
    api: str  # HOST:PORT that answers on this PC
    listen: str  # HOST:PORT for other PCs
    name: str


class StateFolder:
    """Use as a context manager to own the folder: one agent at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: IO[str] | None = None

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def store(self) -> Path:
        return self.root / "store"

    def __enter__(self) -> StateFolder:
        self.root.mkdir(parents=True, exist_ok=True)
        lock = (self.root / "agent.lock").open("a+", encoding="ascii")
        if not _try_lock(lock):
            lock.close()
            raise UsageError(
                f"An agent runs on {self.root} already.",
                "Stop it, or give this one its own --state-dir.",
            )
        self._lock = lock
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        (self.root / "agent.json").unlink(missing_ok=True)
        assert self._lock is not None
        self._lock.close()  # gives the lock back
        self._lock = None

    def next_incarnation(self) -> int:
        """Count one more start, on disk before it is used."""
        file = self.root / "incarnation"
        try:
            last = int(file.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            last = 0
        write_atomically(file, str(last + 1))
        return last + 1

    def announce(self, agent: RunningAgent) -> None:
        """Let other commands find the agent."""
        write_atomically(self.root / "agent.json", json.dumps(asdict(agent)))

    def running_agent(self) -> RunningAgent:
        """Raises NotReady when no agent runs here."""
        try:
            found = json.loads((self.root / "agent.json").read_text(encoding="utf-8"))
            return RunningAgent(found["pid"], found["api"], found["listen"], found["name"])
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise NotReady(
                f"No agent runs on {self.root}.", "Start it with: meshinfer up"
            ) from error

    def chosen_model(self) -> ModelId | None:
        """What an earlier `up --model` or `pull` decided."""
        try:
            return ModelId((self.root / "model").read_text(encoding="utf-8").strip()) or None
        except FileNotFoundError:
            return None

    def choose_model(self, model: ModelId) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomically(self.root / "model", model)


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take, without folders below it."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def write_atomically(file: Path, text: str) -> None:
    """The old content or the new one, whenever the power goes."""
    scratch = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with scratch.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    scratch.replace(file)


def _try_lock(file: IO[str]) -> bool:
    """An exclusive lock that ends with the process, however it ends."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
