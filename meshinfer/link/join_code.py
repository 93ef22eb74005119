"""The one secret that a person carries from the first PC of a fleet to the next.

`mi1-` and 56 base32 characters: 32 random bytes and 3 bytes of checksum, so that a slip of the
keyboard is told apart from the code of another fleet before anything goes over the network. All
keys of a fleet are derived from it with HKDF-SHA256.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from meshinfer.core.ids import FleetId
from meshinfer.errors import UsageError

_PREFIX = "mi1"
_SECRET_BYTES = 32
_CHECKSUM_BYTES = 3
_BODY_CHARACTERS = (_SECRET_BYTES + _CHECKSUM_BYTES) * 8 // 5
_SALT = b"meshinfer/v1"
_WHERE = "Copy it again from `meshinfer invite` on a PC that has it."


class JoinCode:
    """Shows its fleet, never itself; `reveal` is for the one command that prints it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _SECRET_BYTES:
            raise ValueError(f"a join code holds {_SECRET_BYTES} bytes")
        self._secret = secret

    @classmethod
    def new(cls, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> JoinCode:
        return cls(random_bytes(_SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> JoinCode:
        """The code that a person typed or pasted; case, spaces, dashes and quotes do not matter.

        Raises UsageError that tells a foreign text, a missing part and a typo apart, and repeats
        nothing of the text.
        """
        letters = "".join(character for character in text.casefold() if character.isalnum())
        if not letters.startswith(_PREFIX):
            raise UsageError("This is not a join code: those begin with mi1-.", _WHERE)
        body = letters.removeprefix(_PREFIX)
        if len(body) != _BODY_CHARACTERS:
            raise UsageError(
                f"The join code has {len(body)} characters after mi1-, not {_BODY_CHARACTERS}.",
                _WHERE,
            )
        try:
            # No base32 letter looks like 0 or 1: who typed them meant O and L.
            raw = base64.b32decode(body.upper(), map01="L")
        except (binascii.Error, ValueError):
            raise UsageError("The join code has a typo: a character is foreign.", _WHERE) from None
        secret, checksum = raw[:_SECRET_BYTES], raw[_SECRET_BYTES:]
        if _checksum(secret) != checksum:
            raise UsageError("The join code has a typo: its checksum is wrong.", _WHERE)
        return cls(secret)

    @property
    def fleet_id(self) -> FleetId:
        """Public and one-way: it names the fleet in mDNS."""
        return FleetId(self.derive(b"fleet-id", 10).hex())

    def derive(self, purpose: bytes, length: int = 32) -> bytes:
        """A key for one purpose; no two purposes share one."""
        return HKDF(SHA256(), length, _SALT, purpose).derive(self._secret)

    def reveal(self) -> str:
        """The text to give to another PC."""
        body = base64.b32encode(self._secret + _checksum(self._secret)).decode().lower()
        return f"{_PREFIX}-{body}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JoinCode):
            return NotImplemented
        return hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self.fleet_id)

    def __repr__(self) -> str:
        return f"<join code of fleet {self.fleet_id}>"


def _checksum(secret: bytes) -> bytes:
    return hashlib.sha256(_PREFIX.encode() + secret).digest()[:_CHECKSUM_BYTES]
