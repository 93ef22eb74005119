"""The same two cores under llama.cpp: an rpc-server on each and a llama-server before them.

Written from llama.cpp's documentation (tools/rpc/README.md, tools/server/README.md) and not run on
the machine where it was written: the binaries are the user's, `--llama-bin DIR`, and so is the GGUF
of the same model, `--llama-model FILE`.
"""

from __future__ import annotations

import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tools.benches.baseline import pin
from tools.benches.bench_fleet import load
from tools.benches.options import BenchOptions
from tools.benches.report import Report
from tools.free_ports import free_ports

USERS = (1, 2, 16)
TOKENS = 64
START_PATIENCE_S = 180.0
STOP_PATIENCE_S = 10.0


def compare_with_llama(report: Report, options: BenchOptions, ours: dict[int, float]) -> None:
    """Rows `fleet/llama/users=N` for the users that our side was measured with."""
    assert options.llama_bin is not None
    if options.llama_model is None or not options.llama_model.is_file():
        raise SystemExit("llama: name the GGUF of the same model with --llama-model FILE.")
    with _serving(options.llama_bin, options.llama_model) as url:
        load(url, options.model, 2, 16)  # warm
        for users in USERS:
            if users not in ours:
                continue
            speed = statistics.median(
                load(url, options.model, users, TOKENS).tokens_per_s for _ in range(options.repeat)
            )
            name = f"llama.cpp RPC {users} users"
            report.compare(f"fleet/llama/users={users}", ours[users], "tokens/s", speed, name)


@contextmanager
def _serving(folder: Path, model: Path) -> Iterator[str]:
    """Where llama-server answers; everything is ended when the scope is left."""
    first, second, api = free_ports(3)
    with ExitStack() as processes:
        for core, port in enumerate((first, second)):
            words = ["--host", "127.0.0.1", "--port", str(port), "--threads", "1"]
            processes.enter_context(_process(_binary(folder, "rpc-server"), words, core))
        # One slot a user; the context is that of all slots together.
        words = ["--model", str(model), "--rpc", f"127.0.0.1:{first},127.0.0.1:{second}"]
        words += ["--n-gpu-layers", "99", "--threads", "1", "--parallel", str(max(USERS))]
        words += ["--ctx-size", str(512 * max(USERS)), "--host", "127.0.0.1", "--port", str(api)]
        server = processes.enter_context(_process(_binary(folder, "llama-server"), words, 0))
        url = f"http://127.0.0.1:{api}"
        _wait_healthy(url, server)
        yield url


def _binary(folder: Path, name: str) -> Path:
    """Newer builds call it ggml-rpc-server."""
    for candidate in (folder / name, folder / f"ggml-{name}", folder / "bin" / name):
        if candidate.is_file():
            return candidate
    raise SystemExit(f"llama: {folder} has no {name}. Build llama.cpp with -DGGML_RPC=ON.")


@contextmanager
def _process(binary: Path, words: list[str], core: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [str(binary), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: pin(core),  # noqa: PLW1509 - no threads yet
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_healthy(url: str, server: subprocess.Popen[bytes]) -> None:
    """`/health` says 503 while the model loads."""
    deadline = time.monotonic() + START_PATIENCE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"llama-server ended with {server.returncode}.")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            pass  # not yet
        time.sleep(0.2)
    raise SystemExit("llama-server was not ready in time.")
