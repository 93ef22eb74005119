"""A hub on this machine: the part of the Hugging Face Hub's HTTP interface that its own client
speaks when it lists and fetches a model (huggingface_hub: hf_api.py `model_info`, file_download.py
`get_hf_file_metadata` and `http_get`, utils/_http.py `hf_raise_for_status`).

    GET  /api/models/ORG/NAME[/revision/REV]?blobs=true
    HEAD, GET /ORG/NAME/resolve/REV/FILE          small files; large ones point elsewhere
    GET  /cdn/SHA256                              where large files lie, under another host's name
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret_of_a_test"

ERRORS = {
    "gated": (403, "GatedRepo"),
    "private": (401, "RepoNotFound"),
    "no revision": (404, "RevisionNotFound"),
}


@dataclass
class Repository:
    """`large` names what is kept by LFS; `claims` gives files another digest than theirs."""

    files: dict[str, bytes]
    large: frozenset[str] = frozenset()
    commit: str = COMMIT
    refusal: str = ""  # a key of ERRORS; a right token lets in
    claims: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def sibling(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        size = self.sizes.get(name, len(data))
        entry: dict[str, Any] = {"rfilename": name, "size": size}
        if name in self.large:
            digest = self.claims.get(name, hashlib.sha256(data).hexdigest())
            entry |= {"blobId": "2" * 40}  # of the pointer file
            entry["lfs"] = {"size": size, "sha256": digest, "pointerSize": 130}
        else:
            entry["blobId"] = self.claims.get(name, blob_id(data))
        return entry


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Heard:
    """One request: its path, its byte range and whether it carried a token."""

    method: str
    path: str
    range: str | None
    host: str
    token: str | None


@dataclass
class HubServer:
    repositories: dict[str, Repository]
    heard: list[Heard] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)  # each ends one body after so many bytes
    stalls: list[int] = field(default_factory=list)  # each lets one body stand after so many
    sent: int = 0  # bytes of bodies of files
    standing: threading.Event = field(default_factory=threading.Event)  # a body stands still
    over: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""
    elsewhere: str = ""

    def paths(self, part: str) -> list[str]:
        return [one.path for one in self.heard if part in one.path]


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""

    @property
    def hub(self) -> HubServer:
        hub: HubServer = self.server.hub
        return hub

    def _serve(self) -> None:
        self.close_connection = True
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization")
        self.hub.heard.append(
            Heard(
                self.command, path, self.headers.get("Range"), self.headers.get("Host", ""), token
            )
        )
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2], found[3])
        elif found := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            self._body(self._large(found[1]))
        else:
            self._error(404, "RepoNotFound")

    def _allowed(self, name: str, revision: str) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._error(401, "RepoNotFound")
            return None
        if repository.refusal and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._error(*ERRORS[repository.refusal])
            return None
        if revision not in ("main", "v1", repository.commit):
            self._error(404, "RevisionNotFound")
            return None
        return repository

    def _info(self, name: str, revision: str) -> None:
        repository = self._allowed(name, revision)
        if repository is not None:
            siblings = [repository.sibling(file) for file in repository.files]
            content = {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings}
            self._reply(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repository = self._allowed(name, revision)
        if repository is None:
            return
        if file not in repository.files:
            self._error(404, "EntryNotFound")
            return
        data = repository.files[file]
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{blob_id(data)}"'}
        if file in repository.large:
            digest = hashlib.sha256(data).hexdigest()
            headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
            headers["Location"] = f"{self.hub.elsewhere}/cdn/{digest}?signature=x"
            self._reply(302, headers, b"")
        else:
            self._body(data, headers)

    def _large(self, digest: str) -> bytes:
        for repository in self.hub.repositories.values():
            for name in repository.large:
                if hashlib.sha256(repository.files[name]).hexdigest() == digest:
                    return repository.files[name]
        raise AssertionError("no such object")

    def _body(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        offset = int(asked[1]) if asked else 0
        headers = {"Content-Type": "application/octet-stream", **(headers or {})}
        if offset:
            headers["Content-Range"] = f"bytes {offset}-{len(data) - 1}/{len(data)}"
        body = data[offset:]
        cut = self.hub.cuts.pop(0) if self.command == "GET" and self.hub.cuts else len(body)
        stall = self.hub.stalls.pop(0) if self.command == "GET" and self.hub.stalls else None
        self._reply(206 if offset else 200, headers, body, cut if stall is None else stall)
        if stall is not None:
            self.hub.standing.set()
            self.hub.over.wait(20)
        elif cut < len(body):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _error(self, status: int, code: str) -> None:
        self._reply(status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}")

    def _reply(
        self, status: int, headers: dict[str, str], body: bytes, most: int | None = None
    ) -> None:
        self.send_response(status)
        always = {"Content-Length": str(len(body)), "Connection": "close"}
        for name, value in {**headers, **always}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            part = body[:most]
            if status in (200, 206) and "/api/" not in self.path:
                self.hub.sent += len(part)
            self.wfile.write(part)
            self.wfile.flush()


@contextmanager
def serving(repositories: dict[str, Repository]) -> Iterator[HubServer]:
    """A hub with these repositories, on a free port of the loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
    hub = HubServer(repositories)
    server.hub = hub  # type: ignore[attr-defined]
    port = server.server_address[1]
    hub.endpoint, hub.elsewhere = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        hub.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
