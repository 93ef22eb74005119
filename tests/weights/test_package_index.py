from __future__ import annotations

import hashlib
import io
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from meshinfer.errors import ModelNotFound, TimedOut, UsageError
from meshinfer.weights.package_index import resolve


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""


def _wheel(name: str) -> bytes:
    buffer = io.BytesIO()
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{name}/part.bin", b"x")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, str]]]:
    """A page of links to wheels on loopback, chosen through pip's own settings."""
    digests, links = {}, []
    for name in ("model_part1", "model_part2"):
        data = _wheel(name)
        digests[name] = hashlib.sha256(data).hexdigest()
        file = f"{name}-1.0-py3-none-any.whl"
        (tmp_path / file).write_bytes(data)
        links.append(f'<a href="/{file}#sha256={digests[name]}">{file}</a>')
    body = "".join(links)
    (tmp_path / "links.html").write_text(f"<!DOCTYPE html><html><body>{body}</body></html>")
    handler = partial(Quiet, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    _only_these_links(monkeypatch, f"{url}/links.html")
    yield url, digests
    server.shutdown()
    server.server_close()
    thread.join()


def _only_these_links(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", url)
    monkeypatch.setenv("PIP_RETRIES", "1")  # pip says only of a retry that it cannot connect
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.slow
def test_pip_tells_address_name_and_digest_in_the_order_asked(
    index: tuple[str, dict[str, str]],
) -> None:
    url, digests = index
    second, first = resolve(["model-part2==1.0", "model-part1==1.0"])
    assert second.url.startswith(f"{url}/model_part2")
    assert second.file == "model_part2-1.0-py3-none-any.whl"
    assert (first.digest, second.digest) == (digests["model_part1"], digests["model_part2"])


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_a_package_that_the_index_has_not_is_named() -> None:
    with pytest.raises(ModelNotFound, match="nothing-like-it"):
        resolve(["nothing-like-it==1.0"])


@pytest.mark.slow
def test_an_index_that_is_not_there_is_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        port = server.server_address[1]
    _only_these_links(monkeypatch, f"http://127.0.0.1:{port}/links.html")
    with pytest.raises(TimedOut, match="could not reach the package index"):
        resolve(["model-part1==1.0"])


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for Python is a script")
def test_a_python_without_pip_says_how_to_get_it(tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\necho '/x/python: No module named pip' >&2\nexit 1\n")
    stand_in.chmod(0o755)
    with pytest.raises(UsageError, match=r"has no pip.*-m ensurepip"):
        resolve(["model-part1==1.0"], python=str(stand_in))
