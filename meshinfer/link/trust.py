"""Who may talk to this PC: TLS contexts for both roles, and the check that OpenSSL cannot do.

TLS 1.3 with certificates on both sides, under the fleet's own authority and nothing else. OpenSSL
checks chain, signatures, purposes and name constraints; `peer_id` then checks what ties a name to a
key (whoever holds the join code could sign another PC's name), the dates and the blocklist. The
dates are ours, because OpenSSL would only say "certificate has expired": people need to know which
PC, and what both clocks say.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from meshinfer.core.ids import NodeId, short
from meshinfer.errors import TrustRefused, UsageError
from meshinfer.link.authority import host_name, node_id
from meshinfer.link.identity import Identity, utc_now

# X509_V_FLAG_NO_CHECK_TIME of OpenSSL (x509_vfy.h), which Python does not name.
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)


BULK_PROTOCOL = "meshinfer-bulk/1"
"""What a caller offers (ALPN) who wants frames over TLS and no websocket: see `link.bulk`."""


def nobody(node: NodeId) -> bool:
    """The empty blocklist."""
    return False


class Trust:
    """`refuses` is asked at every handshake; `now` is this PC's clock, with its time zone."""

    def __init__(
        self,
        identity: Identity,
        *,
        refuses: Callable[[NodeId], bool] = nobody,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.identity = identity
        self._refuses = refuses
        self._now = now
        self.server_context = _context(identity, ssl.PROTOCOL_TLS_SERVER)
        # No tickets: a resumed session would be a second way in, and links are long-lived anyway.
        self.server_context.num_tickets = 0
        self._known_context = _context(identity, ssl.PROTOCOL_TLS_CLIENT)
        self._known_context.check_hostname = True
        self._unknown_context = _context(identity, ssl.PROTOCOL_TLS_CLIENT)
        self.bulk_context = _context(identity, ssl.PROTOCOL_TLS_CLIENT)
        self.bulk_context.check_hostname = True
        self.bulk_context.set_alpn_protocols([BULK_PROTOCOL])
        self.server_context.set_alpn_protocols([BULK_PROTOCOL])

    @property
    def node(self) -> NodeId:
        return self.identity.node

    def client_context(self, expect: NodeId | None) -> ssl.SSLContext:
        """For dialling `expect` (pass `host_name(expect)` as the server name), or anybody."""
        return self._unknown_context if expect is None else self._known_context

    def peer_id(self, connection: ssl.SSLObject | ssl.SSLSocket | None) -> NodeId:
        """Who is at the other end of a finished handshake. Raises TrustRefused."""
        data = connection.getpeercert(binary_form=True) if connection is not None else None
        if data is None:
            raise TrustRefused("The connection has no certificate.", "Join the fleet first.")
        return self.member(x509.load_der_x509_certificate(data))

    def member(self, certificate: x509.Certificate) -> NodeId:
        """Whose certificate of this fleet's authority (the caller checked that) this is. Raises
        TrustRefused: it names another PC than its key, is out of date, or was revoked."""
        node = _key_bound_name(certificate)
        self._check_dates(node, certificate)
        if self._refuses(node):
            raise TrustRefused(
                f"PC {short(node)} was revoked from this fleet.",
                "Join it again with a new code if that was a mistake.",
            )
        return node

    def _check_dates(self, node: NodeId, certificate: x509.Certificate) -> None:
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        now = self._now()
        if begin <= now <= end:
            return
        off = begin - now if now < begin else now - end
        state = "not valid yet" if now < begin else "expired"
        raise TrustRefused(
            f"The certificate of PC {short(node)} is {state}: it is valid from {_utc(begin)} to "
            f"{_utc(end)}, and the clock of PC {short(self.node)} says {_utc(now)}, which is "
            f"{off.days} days {off.seconds // 3600} h off.",
            f"Set the clock if it is wrong, else run meshinfer join CODE on PC {short(node)}.",
        )


def _context(identity: Identity, protocol: int) -> ssl.SSLContext:
    """Neither the machine's trust store nor SSLKEYLOGFILE: a bare context reads none of them."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT | _NO_CHECK_TIME
    context.load_verify_locations(
        cadata=identity.authority.public_bytes(Encoding.PEM).decode("ascii")
    )
    try:
        context.load_cert_chain(identity.file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"Cannot load {identity.file}: {error}.", "Run meshinfer join CODE again."
        ) from error
    return context


def _key_bound_name(certificate: x509.Certificate) -> NodeId:
    """The id that follows from the key, if that is exactly what the certificate names."""
    try:
        node = node_id(certificate.public_key())
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = extension.value.get_values_for_type(x509.DNSName)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise TrustRefused("The certificate of the PC names nobody.") from error
    if names != [host_name(node)]:
        raise TrustRefused(
            "The certificate of the PC names another PC than its key belongs to.",
            "Somebody with the join code pretends to be another PC: make a new fleet.",
        )
    return node


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
