"""The first bytes of real handshakes, and of everything else that may come to a port."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.link.client_hello import MOST_BYTES, offered_protocols, whole_length


def hello(*protocols: str, name: str | None = None) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


HELLO = hello("one", "meshinfer-bulk/1", name="somebody.example")


def test_the_names_that_openssl_offers_are_found() -> None:
    assert offered_protocols(HELLO) == (b"one", b"meshinfer-bulk/1")
    assert offered_protocols(hello("h2")) == (b"h2",)


def test_a_hello_without_names_offers_none() -> None:
    assert offered_protocols(hello(name="somebody.example")) == ()


def test_the_length_is_known_from_the_fifth_byte_on() -> None:
    assert [whole_length(HELLO[:size]) for size in range(6)] == [None] * 5 + [len(HELLO)]


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1", b"\x00" * 9, b"SSH-2.0", b"\x80\x2e\x01"])
def test_what_is_no_tls_is_seen_at_its_first_byte(begin: bytes) -> None:
    assert whole_length(begin) == 0
    assert offered_protocols(begin) == ()


def test_a_length_beyond_a_record_is_not_waited_for() -> None:
    assert whole_length(b"\x16\x03\x01\xff\xff") == MOST_BYTES


@pytest.mark.parametrize("size", range(len(HELLO)))
def test_cut_short_anywhere_it_is_no_error(size: int) -> None:
    assert set(offered_protocols(HELLO[:size])) <= {b"one", b"meshinfer-bulk/1"}


@given(st.binary(max_size=300), st.integers(0, len(HELLO)))
def test_junk_is_no_error(junk: bytes, at: int) -> None:
    offered_protocols(junk)
    offered_protocols(HELLO[:at] + junk + HELLO[at + len(junk) :])
    whole_length(junk)
