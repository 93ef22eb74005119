"""A fleet on one machine whose network is as slow, thin and broken as you like.

    python tools/lab.py up --pcs 3 --method switch --delay 50 --jitter 5 --rate 100 --loss 0.5 \
        --model DIR -- --stages 3

`link`: the agents delay what comes in (`--hop-delay`). `proxy`: TCP proxies between them, with
delay, jitter, rate and cuts, on any system whose 127.0.1.N are addresses of its own. `switch`: an
Ethernet between network namespaces, with loss too (Linux, root). Benches and tests use `Lab`.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# so that `python tools/lab.py` finds its own package
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from meshinfer.cli.status import members_table, stages_table
from meshinfer.errors import MeshInferError, UsageError
from tools.agent_process import AgentProcess
from tools.free_ports import free_ports
from tools.labs import fleet
from tools.labs.network import LabNetwork, NetworkOrder
from tools.labs.quality import METHODS, PROXY, LinkQuality

MOST_PCS = 64
HELP = "delay A B MS | rate A B MBIT | loss PERCENT | cut A B | cut-one-way A B | abort A B | heal"


@dataclass(frozen=True, slots=True)
class LabOrder:
    """What to build. `words` are for every agent's `up`, behind those of the lab."""

    pcs: int
    method: str
    quality: LinkQuality = LinkQuality()
    model: Path | None = None
    words: tuple[str, ...] = ()
    folder: Path | None = None  # None: one that is removed at the end
    seed: int = 0  # of jitter and loss


class Lab:
    """Use as a context manager. `agents[0]` is PC 1, which has the model; see `wait_ready`."""

    def __init__(self, order: LabOrder) -> None:
        """Raises UsageError for what the method cannot do."""
        if not 1 <= order.pcs <= MOST_PCS:
            raise UsageError(f"--pcs {order.pcs} is not from 1 to {MOST_PCS}.")
        self._order = order
        self._scope = contextlib.ExitStack()
        ports = free_ports(2 * order.pcs)
        pcs = range(1, order.pcs + 1)
        listen = {pc: ports[2 * pc - 2] for pc in pcs}
        api = {pc: ports[2 * pc - 1] for pc in pcs}
        self.network = LabNetwork(
            NetworkOrder(order.method, order.quality, listen, api, order.seed)
        )
        self._ports = ports
        self.agents: list[AgentProcess] = []

    def __enter__(self) -> Lab:
        """Start everything. Raises UsageError, SystemExit; nothing is left behind then."""
        with contextlib.ExitStack() as scope:
            folder = self._order.folder
            if folder is None:
                folder = Path(scope.enter_context(tempfile.TemporaryDirectory(prefix="lab-")))
            self.agents = fleet.agents_of(folder.resolve(), self._ports)
            model = self._order.model
            fleet.found(self.agents, *(() if model is None else (model,)))
            scope.enter_context(self.network)
            scope.enter_context(fleet.running(self.agents, self.network, self._words))
            if self._order.method == PROXY:
                self.introduce()
            self._scope = scope.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.close()

    def introduce(self) -> None:
        """Tell proxies the processes of the agents: after the start, and after each restart."""
        running = {pc: one.process for pc, one in enumerate(self.agents, 1)}
        self.network.introduce({pc: one.pid for pc, one in running.items() if one is not None})

    def wait_ready(self) -> None:
        """Until the model is served. Raises SystemExit."""
        fleet.wait_ready(self.agents)

    def _words(self, pc: int) -> list[str]:
        order = self._order
        words = fleet.words_for(order.method, self.agents, pc, order.quality)
        # One PC could hold a small model alone: then there would be no network to try out.
        if "--stages" not in order.words:
            words += ["--stages", str(order.pcs)]
        if "--configuration" not in order.words:  # calibrating says little on shared cores
            words += ["--configuration", "default"]
        if order.model is not None and pc == 1:
            words += ["--model", order.model.name]
        return [*words, *order.words]


def obey(lab: Lab, line: str) -> None:
    """One command of a person. Raises UsageError."""
    network = lab.network
    try:
        match line.split():
            case ["delay", a, b, ms]:
                network.change((int(a), int(b)), delay_ms=float(ms))
            case ["rate", a, b, mbit]:
                network.change((int(a), int(b)), rate_mbit=float(mbit))
            case ["loss", percent]:
                network.change_all(loss=float(percent))
            case ["cut", a, b]:
                network.cut(int(a), int(b))
            case ["cut-one-way", a, b]:
                network.cut_one_way(int(a), int(b))
            case ["abort", a, b]:
                network.abort(int(a), int(b))
            case ["heal"]:
                network.heal()
            case ["status"]:
                print(status(lab), flush=True)
            case _:
                raise UsageError(f"{line.strip()!r} is no command.", f"Known: {HELP} | status")
    except ValueError as error:
        raise UsageError(f"{line.strip()!r}: {error}.", f"Known: {HELP} | status") from error


def status(lab: Lab) -> str:
    """What the first PC that answers says, and every line that is not as at first."""
    document = next(filter(None, (one.status() for one in lab.agents)), None)
    parts = ["nobody answers"]
    if document is not None:
        parts = [members_table(document)]
        parts += [stages_table(document)] if document.get("plan") else []
    for (source, target), quality in lab.network.qualities.items():
        parts.append(f"{source} -> {target}: {quality}")
    return "\n".join(parts)


def stay(lab: Lab) -> None:
    """Obey what comes in on standard input until Ctrl-C. Raises SystemExit for an agent's end."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    while True:
        fleet.check(lab.agents)
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=0.5)
            if line.strip():
                try:
                    obey(lab, line)
                    print("ok", flush=True)
                except UsageError as error:
                    print(error, flush=True)


def order_of(words: list[str]) -> LabOrder:
    """Flags before `--` are the lab's, those behind it are of `meshinfer up`. Raises UsageError."""
    end = words.index("--") if "--" in words else len(words)
    own, others = words[:end], words[end + 1 :]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    up = parser.add_subparsers(required=True).add_parser("up", help="start a fleet")
    up.add_argument("--pcs", type=int, default=2)
    up.add_argument("--method", choices=METHODS, default=PROXY)
    up.add_argument("--delay", type=float, default=0.0, metavar="MS", help="one way")
    up.add_argument("--jitter", type=float, default=0.0, metavar="MS")
    up.add_argument("--rate", type=float, default=0.0, metavar="MBIT", help="a second; 0: any")
    up.add_argument("--loss", type=float, default=0.0, metavar="PERCENT")
    up.add_argument("--model", type=Path, required=True, metavar="DIR", help="as `pull` leaves it")
    up.add_argument("--folder", type=Path, metavar="DIR", help="keep the state folders here")
    up.add_argument("--seed", type=int, default=0)
    found = parser.parse_args(own)
    if not found.model.is_dir():
        raise UsageError(f"{found.model} is no folder.", "Give a model's folder.")
    quality = LinkQuality(found.delay, found.jitter, found.rate, found.loss)
    model = found.model.resolve()
    return LabOrder(
        found.pcs, found.method, quality, model, tuple(others), found.folder, found.seed
    )


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Ctrl-C and a polite kill end the scope in order."""
    # a shell has Ctrl-C ignored in what it starts behind its back
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        yield


def main() -> None:
    try:
        with stopping(), Lab(order_of(sys.argv[1:])) as lab:
            for agent in lab.agents:
                print(f"{agent.name}: {agent.url}/v1     --state-dir {agent.folder}", flush=True)
            lab.wait_ready()
            print(f"{status(lab)}\nready; {HELP} | status | Ctrl-C", flush=True)
            stay(lab)
    except MeshInferError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
