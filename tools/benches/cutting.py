"""What cutting a model into stages takes: seconds, and memory beyond the mapped file.

Runs in a process of its own, so that its memory is its own: `python -m tools.benches.cutting MODEL`
prints both. Called by the split suite.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from meshinfer.node.even_cuts import even_cut
from meshinfer.weights.folder import open_folder
from meshinfer.weights.progress import untold
from meshinfer.weights.split import split
from meshinfer.weights.store import Store

STAGES = 4
_EVERY_S = 0.01


def measure(folder: Path) -> tuple[float, float]:
    """(seconds, MB) of cutting the model in `folder`, its pieces hashed anew."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.benches.cutting", str(folder)],
        check=True,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )
    seconds, megabytes = json.loads(done.stdout)
    return float(seconds), float(megabytes)


def _anonymous_bytes() -> int:
    """Memory that is no mapped file (proc_pid_status(5), Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def main() -> None:
    folder = open_folder(Path(sys.argv[1]))
    (folder.path / "pieces.json").unlink(missing_ok=True)
    most, done = _anonymous_bytes(), threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(_EVERY_S):
            most = max(most, _anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with tempfile.TemporaryDirectory() as store:
        cut = even_cut(folder.shape.units, STAGES, inside_layer=False)
        began = time.perf_counter()
        split(folder, cut, Store(Path(store)), untold)
        seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    print(json.dumps([seconds, most / 1e6]))


if __name__ == "__main__":
    main()
