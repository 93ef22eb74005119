from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from meshinfer.link.authority import host_name
from meshinfer.link.tls_stream import TlsStream
from meshinfer.link.trust import Trust
from tests.link.conftest import Fleets

PATIENCE_S = 20.0


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), PATIENCE_S)
        far, _ = listener.accept()
    far.settimeout(PATIENCE_S)
    with near, far:
        yield near, far


@pytest.fixture
def pair(
    sockets: tuple[socket.socket, socket.socket], fleets: Fleets
) -> tuple[TlsStream, TlsStream]:
    client = TlsStream(
        sockets[0], Trust(fleets.member).bulk_context, host_name(fleets.founder.node)
    )
    server = TlsStream(sockets[1], Trust(fleets.founder).server_context)
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(client.handshake), threads.submit(server.handshake)]:
            done.result(PATIENCE_S)
    return client, server


def read(stream: TlsStream, size: int) -> bytes:
    data = bytearray(size)
    rest = memoryview(data)
    while rest and (count := stream.read_into(rest)):
        rest = rest[count:]
    return bytes(data[: size - len(rest)])


def test_parts_arrive_one_behind_the_other(pair: tuple[TlsStream, TlsStream]) -> None:
    client, server = pair
    server.write(b"head", b"", memoryview(b"body"))
    assert read(client, 8) == b"headbody"


def test_both_directions_at_once_and_more_than_any_buffer_holds(
    pair: tuple[TlsStream, TlsStream],
) -> None:
    size = 12 << 20
    data = bytes(range(256)) * (size >> 8)
    with ThreadPoolExecutor(4) as threads:
        reads = [threads.submit(read, stream, size) for stream in pair]
        writes = [threads.submit(stream.write, data) for stream in pair]
        for done in [*writes, *reads]:
            assert done.result(PATIENCE_S) in (None, data)


def test_each_side_knows_the_other(pair: tuple[TlsStream, TlsStream], fleets: Fleets) -> None:
    client, server = pair
    assert Trust(fleets.member).peer_id(client.tls) == fleets.founder.node
    assert Trust(fleets.founder).peer_id(server.tls) == fleets.member.node
    assert client.tls.version() == "TLSv1.3"


def test_the_end_of_the_other_side_is_no_error(pair: tuple[TlsStream, TlsStream]) -> None:
    client, server = pair
    server.write(b"last")
    server.shut(socket.SHUT_WR)
    assert read(client, 100) == b"last"
    assert client.read_into(memoryview(bytearray(1))) == 0


def test_a_thread_that_waits_is_woken_by_a_cut(pair: tuple[TlsStream, TlsStream]) -> None:
    client, _ = pair
    ended = threading.Event()

    def wait() -> None:
        assert client.read_into(memoryview(bytearray(1))) == 0
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    client.shut(socket.SHUT_RDWR)
    assert ended.wait(PATIENCE_S)
    thread.join()
    client.shut(socket.SHUT_RDWR)  # again is nothing


def test_bytes_that_are_not_from_the_peer_are_an_error(
    pair: tuple[TlsStream, TlsStream], sockets: tuple[socket.socket, socket.socket]
) -> None:
    client, _ = pair
    sockets[1].sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)
    with pytest.raises(ssl.SSLError):
        client.read_into(memoryview(bytearray(100)))


def test_a_stranger_is_refused_and_hears_it(
    sockets: tuple[socket.socket, socket.socket], fleets: Fleets
) -> None:
    client = TlsStream(
        sockets[0], Trust(fleets.stranger).bulk_context, host_name(fleets.founder.node)
    )
    server = TlsStream(sockets[1], Trust(fleets.founder).server_context)
    with ThreadPoolExecutor(2) as threads:
        outcomes = [threads.submit(client.handshake), threads.submit(server.handshake)]
        with pytest.raises(ssl.SSLCertVerificationError):
            outcomes[0].result(PATIENCE_S)
        with pytest.raises(ssl.SSLError, match="(?i)alert"):
            outcomes[1].result(PATIENCE_S)


def test_who_leaves_during_the_handshake_is_an_error(
    sockets: tuple[socket.socket, socket.socket], fleets: Fleets
) -> None:
    server = TlsStream(sockets[1], Trust(fleets.founder).server_context)
    sockets[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError, match="left during"):
        server.handshake()
