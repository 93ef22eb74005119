"""The handle of a lab's network: its quality per pair of PCs, cuts, and its end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshinfer.errors import MeshInferError, PeerLost, UsageError
from tools.labs.quality import LINK, LinkQuality, check_method

CLOSE_PATIENCE_S = 20.0
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class NetworkOrder:
    method: str
    quality: LinkQuality  # of every pair, at first
    listen: dict[int, int]  # PC (from 1) -> agent port
    api: dict[int, int]  # PC -> API port
    seed: int = 0

    def text(self) -> str:
        document = {
            "method": self.method, "quality": self.quality.document(), "seed": self.seed,
            "listen": self.listen, "api": self.api,
        }  # fmt: skip
        return json.dumps(document)


class LabNetwork:
    """Use as a context manager. A pair is ordered: (1, 2) is the way from PC 1 to PC 2."""

    def __init__(self, order: NetworkOrder) -> None:
        """Raises UsageError for a quality that the method cannot do."""
        check_method(order.method, order.quality)
        self._order = order
        self._qualities = {
            (a, b): order.quality for a in order.listen for b in order.listen if a != b
        }
        self._process: subprocess.Popen[str] | None = None
        self.namespaces: dict[int, str] = {}

    def __enter__(self) -> LabNetwork:
        """Raises UsageError where this machine cannot have such a network."""
        if self._order.method == LINK:
            return self
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.labs.network_process", self._order.text()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
        )  # fmt: skip
        try:
            found = self._answer()
        except BaseException:
            self.close()
            raise
        self.namespaces = {int(pc): name for pc, name in found["namespaces"].items()}
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def qualities(self) -> dict[tuple[int, int], LinkQuality]:
        return dict(self._qualities)

    def set(self, pair: tuple[int, int], quality: LinkQuality) -> None:
        """From now on, one way. Raises UsageError."""
        if pair not in self._qualities:
            raise UsageError(f"There is no line from PC {pair[0]} to PC {pair[1]}.")
        if self._order.method == LINK:
            raise UsageError(
                "The method `link` cannot change while agents run.", "Use --method proxy."
            )
        check_method(self._order.method, quality)
        self._ask({"set": list(pair), "quality": quality.document()})
        self._qualities[pair] = quality

    def change(self, pair: tuple[int, int], **what: Any) -> None:
        """Set some fields of a line's quality, both ways."""
        for one in (pair, pair[::-1]):
            self.set(one, replace(self._quality(one), **what))

    def change_all(self, **what: Any) -> None:
        for pair, quality in self.qualities.items():
            self.set(pair, replace(quality, **what))

    def cut(self, first: int, second: int) -> None:
        """Silence both ways, as when a cable is pulled."""
        self.change((first, second), cut=True)

    def cut_one_way(self, source: int, target: int) -> None:
        self.set((source, target), replace(self._quality((source, target)), cut=True))

    def heal(self) -> None:
        """Nothing is cut any more."""
        for pair, quality in self.qualities.items():
            if quality.cut:
                self.set(pair, replace(quality, cut=False))

    def abort(self, first: int, second: int) -> None:
        """Reset all connections between two PCs; `proxy` only. Raises UsageError."""
        self._ask({"abort": [first, second]})

    def introduce(self, agents: dict[int, int]) -> None:
        """Tell a proxy which processes are which PC: PC -> process id of its agent."""
        self._ask({"agents": agents})

    def close(self) -> None:
        """Idempotent; the process removes what it made when its input ends."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(CLOSE_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _quality(self, pair: tuple[int, int]) -> LinkQuality:
        return self._qualities.get(pair, LinkQuality())  # an unknown pair is refused by `set`

    def _ask(self, command: dict[str, Any]) -> None:
        if self._process is None:
            raise UsageError("This network cannot be changed.", "Use --method proxy or switch.")
        assert self._process.stdin is not None
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
        except OSError as error:
            raise _ended() from error
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise _ended()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UsageError(answer["error"])
        return answer


def _ended() -> MeshInferError:
    return PeerLost("The process of the lab's network has ended.", "Start the lab again.")
