"""The fleet's certificate authority, derived from the join code on whatever PC has it.

Key, serial number and dates follow from the code alone and Ed25519 signatures are deterministic, so
every PC makes the same certificate, byte for byte, and nobody has to be online to let a PC in. The
authority exists only while a PC founds, joins or renews; a PC that joined keeps the certificate
and forgets the key.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from meshinfer.core.ids import NodeId
from meshinfer.errors import UsageError
from meshinfer.link.join_code import JoinCode

DOMAIN = "fleet.meshinfer.invalid"
"""`.invalid` is reserved (RFC 2606): no public authority may ever vouch for a name below it."""

# Before any PC that runs this, so that a clock that is behind never makes a certificate "not yet
# valid"; what is checked in earnest is the end.
VALID_FROM = datetime(2020, 1, 1, tzinfo=UTC)
AUTHORITY_VALID_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
LEAF_LIFE = timedelta(days=400)


def node_id(key: CertificatePublicKeyTypes) -> NodeId:
    """base32 of the SHA-256 of the key's SubjectPublicKeyInfo: 52 lower-case characters."""
    info = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    text = base64.b32encode(hashlib.sha256(info).digest()).decode()
    return NodeId(text.rstrip("=").lower())


def host_name(node: NodeId) -> str:
    """The name in a node's certificate, whatever its address on the LAN."""
    return f"{node}.{DOMAIN}"


class Authority:
    """Issues certificates for the fleet of one join code."""

    def __init__(self, code: JoinCode) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(code.derive(b"ca-ed25519"))
        # One bit less than 16 bytes: a serial number is a positive integer.
        serial = int.from_bytes(code.derive(b"ca-serial", 16), "big") >> 1
        self.certificate = self._own_certificate(f"meshinfer fleet {code.fleet_id}", serial)

    def issue(self, key: Ed25519PublicKey, now: datetime) -> x509.Certificate:
        """A PC's certificate, for 400 days. Raises UsageError when the clock is before 2020."""
        if now < VALID_FROM:
            raise UsageError(
                f"The clock of this PC says {now:%Y-%m-%d}.",
                "Set it, then run the command again: certificates depend on it.",
            )
        node = node_id(key)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return (
            x509.CertificateBuilder()
            .subject_name(_name(node))
            .issuer_name(self.certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(VALID_FROM)
            .not_valid_after(now + LEAF_LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host_name(node))]), False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, None)
        )

    def _own_certificate(self, name: str, serial: int) -> x509.Certificate:
        public = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(name))
            .public_key(public)
            .serial_number(serial)
            .not_valid_before(VALID_FROM)
            .not_valid_after(AUTHORITY_VALID_UNTIL)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.NameConstraints([x509.DNSName(DOMAIN)], None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, None)
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
