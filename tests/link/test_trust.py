"""The refusal matrix: who finishes a handshake, who does not, and what each is told."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from meshinfer.core.ids import NodeId
from meshinfer.errors import TrustRefused, UsageError
from meshinfer.link.authority import Authority, host_name, node_id
from meshinfer.link.identity import Identity
from meshinfer.link.join_code import JoinCode
from meshinfer.link.refusal import handshake_reason, is_refusal
from meshinfer.link.trust import Trust
from tests.link.conftest import Fleets

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Outcome:
    """What both sides got from one handshake in memory: an SSLObject, or the error."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, name: str | None) -> None:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(to_server, to_client, server_side=True)
        self.client = client.wrap_bio(to_client, to_server, server_hostname=name)
        self.server_error: ssl.SSLError | None = None
        self.client_error: ssl.SSLError | None = None
        for _ in range(4):
            self.client_error = self.client_error or _shake(self.client)
            self.server_error = self.server_error or _shake(self.server)
        if self.client_error is None:  # TLS 1.3: a refusal shows at the client's first read
            self.client_error = _read(self.client)

    @property
    def succeeded(self) -> bool:
        return self.server_error is None and self.client_error is None


def _shake(side: ssl.SSLObject) -> ssl.SSLError | None:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return None
    except ssl.SSLError as error:
        return error
    return None


def _read(side: ssl.SSLObject) -> ssl.SSLError | None:
    try:
        side.read(1)
    except ssl.SSLWantReadError:
        return None
    except ssl.SSLError as error:
        return error
    return None


def meet(server: Trust, client: Trust, expect: NodeId | None = None) -> Outcome:
    name = None if expect is None else host_name(expect)
    return Outcome(server.server_context, client.client_context(expect), name)


def with_leaf(identity: Identity, key: Ed25519PrivateKey, leaf: x509.Certificate) -> Identity:
    """`identity` with another key and certificate, stored beside it."""
    file = identity.file.with_name("forged.pem")
    file.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + leaf.public_bytes(Encoding.PEM)
    )
    return replace(identity, file=file, key=key, leaf=leaf)


def signing_key(code: JoinCode) -> Ed25519PrivateKey:
    """The fleet's own key, as anybody with the join code can derive it."""
    return Ed25519PrivateKey.from_private_bytes(code.derive(b"ca-ed25519"))


def certificate(
    code: JoinCode, key: Ed25519PrivateKey, names: list[str], until: datetime | None = None
) -> x509.Certificate:
    """What somebody with the join code can sign: any name, any date."""
    authority = signing_key(code)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]))
        .issuer_name(Authority(code).certificate.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(until or datetime(2050, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False
        )
        .sign(authority, None)
    )


def test_two_members_know_each_other_after_the_handshake(fleets: Fleets) -> None:
    server, client = Trust(fleets.founder), Trust(fleets.member)
    outcome = meet(server, client, fleets.founder.node)
    assert outcome.succeeded
    assert outcome.client.version() == "TLSv1.3"
    assert client.peer_id(outcome.client) == fleets.founder.node
    assert server.peer_id(outcome.server) == fleets.member.node


def test_an_unknown_member_can_be_called(fleets: Fleets) -> None:
    client = Trust(fleets.member)
    outcome = meet(Trust(fleets.founder), client)
    assert client.peer_id(outcome.client) == fleets.founder.node


def test_another_member_than_the_expected_one(fleets: Fleets) -> None:
    outcome = meet(Trust(fleets.founder), Trust(fleets.member), fleets.member.node)
    assert outcome.client_error is not None
    assert handshake_reason(outcome.client_error) == (
        "it is another PC than the one that was called"
    )


@pytest.mark.parametrize("known", [True, False])
def test_a_server_of_another_fleet(fleets: Fleets, known: bool) -> None:
    expect = fleets.stranger.node if known else None
    outcome = meet(Trust(fleets.stranger), Trust(fleets.member), expect)
    assert outcome.client_error is not None
    assert handshake_reason(outcome.client_error) == "it belongs to another fleet"
    assert is_refusal(outcome.client_error)


def test_a_client_of_another_fleet_that_trusts_us(fleets: Fleets) -> None:
    client = Trust(fleets.stranger).client_context(None)
    client.load_verify_locations(
        cadata=fleets.founder.authority.public_bytes(Encoding.PEM).decode()
    )
    outcome = Outcome(Trust(fleets.founder).server_context, client, None)
    assert outcome.server_error is not None
    assert handshake_reason(outcome.server_error) == "it belongs to another fleet"
    assert outcome.client_error is not None
    assert handshake_reason(outcome.client_error) == "it says that this PC belongs to another fleet"


def bare_client(**changes: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for name, value in changes.items():
        setattr(context, name, value)
    return context


def test_a_client_without_a_certificate(fleets: Fleets) -> None:
    outcome = Outcome(Trust(fleets.founder).server_context, bare_client(), None)
    assert outcome.server_error is not None
    assert handshake_reason(outcome.server_error) == ("it showed no certificate: it is in no fleet")
    assert outcome.client_error is not None
    assert "asks for a certificate" in handshake_reason(outcome.client_error)


def test_tls_1_2(fleets: Fleets) -> None:
    client = bare_client(maximum_version=ssl.TLSVersion.TLSv1_2)
    outcome = Outcome(Trust(fleets.founder).server_context, client, None)
    assert outcome.server_error is not None
    assert handshake_reason(outcome.server_error) == "it offers only TLS older than 1.3"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it speaks HTTP without TLS: not a meshinfer agent"),
        (b"CONNECT x:1 HTTP/1.1\r\n\r\n", "it takes this PC for a proxy: not a meshinfer agent"),
        (b"\x80\x04\x95\x1a" + bytes(40), "not a meshinfer agent"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not a meshinfer agent"),
        (bytes(64), "not a meshinfer agent"),
    ],
)
def test_what_is_not_tls_is_named(fleets: Fleets, data: bytes, reason: str) -> None:
    incoming = ssl.MemoryBIO()
    incoming.write(data)
    server = Trust(fleets.founder).server_context.wrap_bio(
        incoming, ssl.MemoryBIO(), server_side=True
    )
    error = _shake(server)
    assert error is not None
    assert reason in handshake_reason(error)


def test_a_forged_name_passes_tls_and_not_us(fleets: Fleets) -> None:
    code = fleets.founder.code
    assert code is not None
    evil = Ed25519PrivateKey.generate()
    forged = certificate(code, evil, [host_name(fleets.founder.node)])
    liar = Trust(with_leaf(fleets.member, evil, forged))
    outcome = meet(liar, Trust(fleets.member), fleets.founder.node)
    assert outcome.succeeded, "OpenSSL alone must be fooled, or this test proves nothing"
    with pytest.raises(TrustRefused, match="names another PC than its key belongs to"):
        Trust(fleets.member).peer_id(outcome.client)


@pytest.mark.parametrize(
    "names",
    [
        lambda own: [own, host_name(NodeId("a" * 52))],
        lambda own: ["*.fleet.meshinfer.invalid"],
        lambda own: [own.upper()],
        lambda own: ["sub." + own],
    ],
    ids=["two names", "wildcard", "upper case", "subdomain"],
)
def test_only_the_one_exact_name(fleets: Fleets, names: Callable[[str], list[str]]) -> None:
    code = fleets.founder.code
    assert code is not None
    key = Ed25519PrivateKey.generate()
    leaf = certificate(code, key, names(host_name(node_id(key.public_key()))))
    outcome = meet(Trust(with_leaf(fleets.member, key, leaf)), Trust(fleets.founder))
    assert outcome.succeeded
    with pytest.raises(TrustRefused):
        Trust(fleets.founder).peer_id(outcome.client)


def test_a_name_outside_the_fleet_fails_in_tls(fleets: Fleets) -> None:
    code = fleets.founder.code
    assert code is not None
    key = Ed25519PrivateKey.generate()
    leaf = certificate(code, key, ["www.example.com"])
    outcome = meet(Trust(with_leaf(fleets.member, key, leaf)), Trust(fleets.founder))
    assert outcome.client_error is not None
    assert handshake_reason(outcome.client_error) == (
        "its certificate names something outside the fleet"
    )


def test_a_member_cannot_sign_for_others(fleets: Fleets) -> None:
    """A leaf used as an authority: the chain is refused, whatever it names."""
    key = Ed25519PrivateKey.generate()
    leaf = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]))
        .issuer_name(fleets.member.leaf.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2050, 1, 1, tzinfo=UTC))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host_name(node_id(key.public_key())))]), False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(fleets.member.key.public_key()),
            False,
        )
        .sign(fleets.member.key, None)
    )
    liar = with_leaf(fleets.member, key, leaf)
    with liar.file.open("ab") as file:
        file.write(fleets.member.leaf.public_bytes(Encoding.PEM))
    outcome = meet(Trust(liar), Trust(fleets.founder))
    assert outcome.client_error is not None


@pytest.mark.parametrize("off", [timedelta(minutes=2), timedelta(hours=26)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_clock_that_is_off_by_hours_hurts_nobody(
    fleets: Fleets, off: timedelta, sign: int
) -> None:
    wrong = Trust(fleets.founder, now=lambda: datetime.now(UTC) + sign * off)
    outcome = meet(wrong, Trust(fleets.member))
    assert wrong.peer_id(outcome.server) == fleets.member.node


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        (datetime(2012, 5, 1, tzinfo=UTC), "not valid yet.* says 2012-05-01 00:00 UTC"),
        (datetime(2050, 5, 1, tzinfo=UTC), "expired.* says 2050-05-01 00:00 UTC"),
    ],
)
def test_a_clock_beyond_the_dates_is_named_with_both_times(
    fleets: Fleets, clock: datetime, said: str
) -> None:
    wrong = Trust(fleets.founder, now=lambda: clock)
    outcome = meet(wrong, Trust(fleets.member))
    assert outcome.succeeded, "dates are checked by us, so that the reason can be told"
    with pytest.raises(TrustRefused, match=said) as caught:
        wrong.peer_id(outcome.server)
    assert "2020-01-01 00:00 UTC" in caught.value.cause
    assert f"{fleets.member.valid_until:%Y-%m-%d %H:%M} UTC" in caught.value.cause
    assert "days" in caught.value.cause
    assert "meshinfer join CODE" in caught.value.remedy


def test_a_revoked_pc_is_refused_at_the_handshake(fleets: Fleets) -> None:
    revoked = {fleets.member.node}
    server = Trust(fleets.founder, refuses=revoked.__contains__)
    outcome = meet(server, Trust(fleets.member))
    with pytest.raises(TrustRefused, match="was revoked"):
        server.peer_id(outcome.server)


def test_a_plain_connection_has_no_peer(fleets: Fleets) -> None:
    with pytest.raises(TrustRefused, match="no certificate"):
        Trust(fleets.founder).peer_id(None)


def test_a_session_cannot_be_resumed(fleets: Fleets) -> None:
    outcome = meet(Trust(fleets.founder), Trust(fleets.member))
    assert outcome.client.session is None or not outcome.client.session.has_ticket


def test_the_contexts_trust_nothing_of_the_machine(
    fleets: Fleets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys.log"))
    trust = Trust(fleets.founder)
    for context in (trust.server_context, trust.client_context(None)):
        assert len(context.get_ca_certs()) == 1
        assert context.keylog_filename is None
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.verify_flags & ssl.VERIFY_X509_STRICT


def test_a_missing_file_is_said(fleets: Fleets) -> None:
    gone = replace(fleets.founder, file=fleets.founder.file.with_name("gone.pem"))
    with pytest.raises(UsageError, match="Cannot load"):
        Trust(gone)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(), "did not finish the TLS handshake in time"),
        (ConnectionAbortedError("too long"), "did not finish the TLS handshake in time"),
        (ConnectionResetError(), "it left during the TLS handshake"),
        (ssl.SSLError(1, "odd"), "its TLS handshake failed"),
        (ValueError("x"), "its TLS handshake failed .ValueError"),
    ],
)
def test_other_ends_of_a_handshake(error: Exception, reason: str) -> None:
    assert re.search(reason, handshake_reason(error))
