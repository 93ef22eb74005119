"""Who this PC is: found a fleet, join one, load the membership, invite others.

The commands `init`, `join` and `invite` call in here, and every agent and stage host calls `load`.
All functions touch the disk (a few kB); none touches the network.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshinfer.core.ids import FleetId, NodeId
from meshinfer.errors import UsageError
from meshinfer.link import identity_file
from meshinfer.link.authority import Authority, node_id
from meshinfer.link.identity_file import Membership, identity_path
from meshinfer.link.join_code import JoinCode

RENEW_BEFORE = timedelta(days=30)
_FLEET_NAME = re.compile(r"meshinfer fleet ([0-9a-f]{20})")


@dataclass(frozen=True, slots=True)
class Identity:
    """A member of a fleet. `file` is what OpenSSL loads: key, certificate, fleet certificate."""

    node: NodeId
    fleet: FleetId
    file: Path
    key: Ed25519PrivateKey = field(repr=False, compare=False)
    leaf: x509.Certificate = field(repr=False)
    authority: x509.Certificate = field(repr=False)
    code: JoinCode | None = field(repr=False)  # on a founder only

    @property
    def valid_until(self) -> datetime:
        return self.leaf.not_valid_after_utc


def utc_now() -> datetime:
    return datetime.now(UTC)


def found(
    state_dir: Path,
    *,
    now: Callable[[], datetime] = utc_now,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> Identity:
    """Start a fleet of which this PC is the first member.

    Raises UsageError when this PC is in a fleet already, or its folder cannot be written.
    """
    existing = identity_file.read(state_dir)
    if existing is not None:
        raise UsageError(
            f"This PC is already in fleet {_fleet(existing)}.",
            "Run meshinfer invite to add PCs, or delete "
            f"{identity_path(state_dir)} to leave the fleet.",
        )
    code = JoinCode.new(random_bytes)
    key = Ed25519PrivateKey.from_private_bytes(random_bytes(32))
    return _store(state_dir, key, code, keep_code=True, now=now())


def join(
    state_dir: Path,
    code: JoinCode,
    *,
    leave_old: bool = False,
    now: Callable[[], datetime] = utc_now,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> Identity:
    """Become a member of the code's fleet. The code itself is not kept.

    Joining the same fleet again keeps the node id and renews the certificate (and a founder stays
    one). Raises UsageError when this PC is in another fleet and `leave_old` is not set.
    """
    existing = identity_file.read(state_dir)
    if existing is not None and _fleet(existing) == code.fleet_id:
        keep = existing.code is not None
        return _store(state_dir, existing.key, code, keep_code=keep, now=now())
    if existing is not None and not leave_old:
        raise UsageError(
            f"This PC is in fleet {_fleet(existing)}, the code is of fleet {code.fleet_id}.",
            f"Delete {identity_path(state_dir)} to leave the old fleet, then join again.",
        )
    key = Ed25519PrivateKey.from_private_bytes(random_bytes(32))
    return _store(state_dir, key, code, keep_code=False, now=now())


def load(state_dir: Path, *, now: Callable[[], datetime] = utc_now) -> Identity:
    """The stored membership; a founder renews its certificate in the last 30 days of it.

    Raises UsageError: not in a fleet, or the file is damaged or belongs to another user.
    """
    stored = identity_file.read(state_dir)
    if stored is None:
        raise UsageError(
            "This PC is not in a fleet.",
            "Run meshinfer init on the first PC, or meshinfer join CODE on any other.",
        )
    if stored.code is not None and now() > stored.leaf.not_valid_after_utc - RENEW_BEFORE:
        return _store(state_dir, stored.key, stored.code, keep_code=True, now=now())
    return _identity(state_dir, stored)


def invite(state_dir: Path) -> JoinCode:
    """The fleet's join code. Raises UsageError where it is not kept."""
    identity = load(state_dir)
    if identity.code is None:
        raise UsageError(
            "This PC joined by a code and did not keep it.",
            "Run meshinfer invite on the PC where the fleet was founded.",
        )
    return identity.code


def _store(
    state_dir: Path, key: Ed25519PrivateKey, code: JoinCode, *, keep_code: bool, now: datetime
) -> Identity:
    authority = Authority(code)
    leaf = authority.issue(key.public_key(), now)
    kept = code if keep_code else None
    membership = Membership(key, leaf, authority.certificate, kept)
    identity_file.write(state_dir, membership)
    return _identity(state_dir, membership)


def _identity(state_dir: Path, stored: Membership) -> Identity:
    return Identity(
        node=node_id(stored.leaf.public_key()),
        fleet=_fleet(stored),
        file=identity_path(state_dir),
        key=stored.key,
        leaf=stored.leaf,
        authority=stored.authority,
        code=stored.code,
    )


def _fleet(stored: Membership) -> FleetId:
    """Read from the fleet's certificate: a PC that joined has no code to derive it from."""
    (name,) = stored.authority.subject
    found = _FLEET_NAME.fullmatch(str(name.value))
    if found is None:
        raise UsageError(
            "The stored fleet certificate is not one of meshinfer.",
            "Delete the folder `identity` of the state folder, then run meshinfer join CODE.",
        )
    return FleetId(found[1])
