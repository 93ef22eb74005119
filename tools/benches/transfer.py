"""How fast a stage reaches other PCs over real TLS, and what the ring feels of it.

Two processes, each pinned to a core, are two PCs; for the followers there are five, which share
what there is. All stores lie in memory where the system offers that (/dev/shm), so that the figure
is the transfer's and not a disk's; every byte is hashed and kept as on a disk. The time of a pull
ends with the published stage, which is read and hashed once more for that.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import StageManifest, UnitRange
from meshinfer.link.identity import found, join
from meshinfer.weights.manifest import build_manifest, describe_file, manifest_to_json
from meshinfer.weights.store import Store
from tools.benches.options import BenchOptions
from tools.benches.report import Report
from tools.free_ports import free_ports

MB = 1_000_000
LIMIT = 20 * MB  # bytes a second of the leader's uplink
ROUNDS = 3
QUIET_S = 2.0  # of steps on links that do nothing else
FOLLOWERS = 4
_MEMORY = Path("/dev/shm")


class Pc:
    """A process of tools/benches/transfer_pc.py."""

    def __init__(self, folder: Path, name: str, core: int | None, limit: int | None) -> None:
        (self.port,) = free_ports(1)
        self.state, self.store = folder / name, folder / f"{name}-store"
        spec = {
            "state": str(self.state),
            "store": str(self.store),
            "port": self.port,
            "core": core,
            "limit": limit,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.benches.transfer_pc", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.node = str(self.answer()["node"])

    def tell(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("A PC of the bench ended; what it said is above.")
        return dict(json.loads(line))

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.tell(do, **arguments)
        return self.answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)


def run(report: Report, options: BenchOptions) -> None:
    size = 256 * MB if options.quick else 1000 * MB
    shared = 60 * MB if options.quick else 200 * MB
    print(f"stores are in {'memory (/dev/shm)' if _MEMORY.is_dir() else 'the temporary folder'}")
    _speed_and_ring(report, size)
    _followers(report, shared)


def _speed_and_ring(report: Report, size: int) -> None:
    with _pcs(2, cores=True, limit=None) as (folder, (source, target)):
        manifest = _publish(source.store, size)
        source.ask("join_ring", node=target.node, port=target.port)
        target.ask("join_ring", node=source.node, port=source.port)
        source.ask("echo_steps")
        target.ask("send_steps")
        time.sleep(QUIET_S)
        quiet = target.ask("figures")["trips"]
        source.ask("figures")
        seconds, trips = [], []
        for _ in range(ROUNDS):
            seconds.append(_pull(target, manifest, [source]))
            measured = target.ask("figures")
            trips += measured["trips"]
            _print_round(size, ("source", source.ask("figures")), ("target", measured))
            target.ask("forget", stage=manifest.digest)
        idle = statistics.median(quiet)
        extra = [max(0.0, trip - idle) / 2 * 1000 for trip in trips]
        _print_hop("on a quiet link", quiet)
        _print_hop("meanwhile", trips)
        report.absolute("transfer/mb_per_s", size / MB / statistics.median(seconds), "MB/s")
        report.absolute("transfer/ring_p99_ms", _percentile(extra, 0.99), "ms")


def _followers(report: Report, size: int) -> None:
    with _pcs(1 + FOLLOWERS, cores=False, limit=LIMIT) as (folder, (leader, *followers)):
        manifest = _publish(leader.store, size)
        one = _pull(followers[0], manifest, [leader])
        followers[0].ask("forget", stage=manifest.digest)
        for follower in followers:
            others = [other for other in followers if other is not follower]
            follower.tell("pull", **_order(manifest, [leader, *others]))
        four = max(float(follower.answer()["seconds"]) for follower in followers)
        print(f"one follower took {one:.2f} s, {FOLLOWERS} took {four:.2f} s")
        report.absolute("transfer/four_followers", four / one, "times")


def _pull(target: Pc, manifest: StageManifest, sources: list[Pc]) -> float:
    return float(target.ask("pull", **_order(manifest, sources))["seconds"])


def _order(manifest: StageManifest, sources: list[Pc]) -> dict[str, Any]:
    """The first source is the leader."""
    return {
        "manifest": json.dumps(manifest_to_json(manifest)),
        "sources": [(pc.node, pc.port, index == 0) for index, pc in enumerate(sources)],
    }


def _publish(root: Path, size: int) -> StageManifest:
    """A stage of random bytes."""
    store = Store(root)
    with store.scratch() as scratch:
        graph, weights = scratch / "openvino_model.xml", scratch / "openvino_model.bin"
        graph.write_text("<net/>")
        with weights.open("wb") as file:
            for start in range(0, size, 16 * MB):
                file.write(os.urandom(min(16 * MB, size - start)))
        manifest = build_manifest(
            ModelId("bench"),
            Digest("0" * 64),
            UnitRange(0, 1),
            "bench",
            [describe_file(graph), describe_file(weights)],
        )
        store.publish(scratch, manifest)
    return manifest


@contextmanager
def _pcs(count: int, cores: bool, limit: int | None) -> Iterator[tuple[Path, list[Pc]]]:
    """PCs of one fleet; `limit` is that of the first."""
    where = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as name, ExitStack() as stack:
        folder = Path(name)
        code = found(folder / "pc0").code
        assert code is not None
        for number in range(1, count):
            join(folder / f"pc{number}", code)
        available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        pcs = []
        for number in range(count):
            core = available[number % len(available)] if cores else None
            pc = Pc(folder, f"pc{number}", core, limit if number == 0 else None)
            stack.callback(pc.close)
            pcs.append(pc)
        yield folder, pcs


def _print_round(size: int, *sides: tuple[str, dict[str, Any]]) -> None:
    for who, figures in sides:
        late = figures["lags"]
        print(
            f"  {who}: {figures['cpu'] / size * 1e9:.2f} s of its core for a GB; "
            f"event loop late by {_percentile(late, 0.5) * 1000:.2f} ms (median), "
            f"{_percentile(late, 0.99) * 1000:.2f} ms (p99)"
        )


def _print_hop(when: str, trips: list[float]) -> None:
    """A busy machine shows in the p99 of the quiet link."""
    middle, late = (_percentile(trips, share) / 2 * 1000 for share in (0.5, 0.99))
    print(f"  a hop {when}: {middle:.3f} ms (median), {late:.3f} ms (p99 of {len(trips)})")


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
