"""A member's signature under the manifest of a stage: who vouches for its bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seal:
    """Made and checked by link.seal; the signer's id follows from the certificate's key."""

    certificate: bytes  # DER, of the member that signed
    signature: bytes  # Ed25519
