"""The commands' client against a server that breaks off, refuses and is not there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from meshinfer.core.fleet import Address
from meshinfer.errors import ModelNotFound, NotReady, PeerLost
from meshinfer.node.api_client import ApiClient

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(text: str) -> bytes:
    data = text.encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@contextmanager
def answering(reply: bytes) -> Iterator[ApiClient]:
    """One connection gets these bytes, then its end."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield ApiClient(Address("127.0.0.1", server.getsockname()[1]), None, timeout_s=10.0)
        finally:
            thread.join()


def test_a_stream_to_its_end() -> None:
    body = chunk('data: {"choices": []}\n\n') + chunk("data: [DONE]\n\n") + b"0\r\n\r\n"
    with answering(STREAM + body) as client:
        assert list(client.chat({})) == [{"choices": []}]


@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n", b"5\r\nda"])
def test_a_stream_that_breaks_off_is_no_success(end: bytes) -> None:
    with answering(STREAM + chunk('data: {"choices": []}\n\n') + end) as client:
        chunks = client.chat({})
        assert next(chunks) == {"choices": []}
        with pytest.raises(PeerLost, match="broke off"):
            next(chunks)


def test_an_error_keeps_its_kind() -> None:
    body = b'{"error": {"message": "no such model", "code": "model_not_found"}}'
    head = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with answering(head + body) as client, pytest.raises(ModelNotFound, match="no such model"):
        client.models()


def test_nobody_there_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NotReady, match="meshinfer up"):
        ApiClient(Address("127.0.0.1", port), None).status()
