"""Manifests are signed by a member of the fleet, so that a stage's bytes can be traced to a PC
whoever passed them on.

A digest enters, a Seal leaves, and the other way round. The leader of a plan signs, every PC of it
checks before anything of a manifest is used.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from meshinfer.core.ids import Digest, NodeId
from meshinfer.core.seal import Seal
from meshinfer.errors import TrustRefused
from meshinfer.link.identity import Identity
from meshinfer.link.trust import Trust

_PURPOSE = b"meshinfer stage manifest 1\0"
"""In front of what is signed: the same key signs TLS handshakes."""

_LARGEST_CERTIFICATE = 4096  # bytes; ours have about 600


class Sealer:
    """Signs as this PC, and knows whose signatures count here."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    def seal(self, digest: Digest) -> Seal:
        """This PC vouches for the manifest with this digest."""
        identity = self._trust.identity
        return Seal(
            identity.leaf.public_bytes(Encoding.DER),
            identity.key.sign(_signed(identity, digest)),
        )

    def signer(self, digest: Digest, seal: Seal) -> NodeId:
        """The member that vouches for the manifest. Raises TrustRefused: nobody of this fleet, a
        revoked PC, or not for this manifest."""
        try:
            if len(seal.certificate) > _LARGEST_CERTIFICATE:
                raise ValueError("a certificate of absurd size")
            certificate = x509.load_der_x509_certificate(seal.certificate)
            certificate.verify_directly_issued_by(self._trust.identity.authority)
            key = certificate.public_key()
            if not isinstance(key, Ed25519PublicKey):
                raise TypeError("a key of another kind")
            key.verify(seal.signature, _signed(self._trust.identity, digest))
        except (ValueError, TypeError, InvalidSignature) as error:
            raise TrustRefused(
                f"The manifest of stage {digest[:12]} is not signed by a PC of this fleet.",
                "The stage is not loaded; have the leader split the model again.",
            ) from error
        return self._trust.member(certificate)


def _signed(identity: Identity, digest: Digest) -> bytes:
    """A signature of one fleet says nothing in another that was founded with the same key."""
    return _PURPOSE + identity.fleet.encode() + b"\0" + digest.encode()
