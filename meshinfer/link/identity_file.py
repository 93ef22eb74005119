"""Everything that makes a PC a member, in one file, so that it is never half written.

`identity/fleet.pem` in the state folder: private key, certificate, certificate of the fleet, and
on a founder the join code. OpenSSL loads key and chain from it directly and skips the code. It is
replaced by renaming a finished file over it, mode 0600 in a folder of mode 0700 (on Windows the
user profile's own permissions do that).
"""

from __future__ import annotations

import base64
import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from meshinfer.errors import DiskFull, UsageError
from meshinfer.link.join_code import JoinCode

FOLDER = "identity"
FILE = "fleet.pem"
_CODE_LABEL = "MESHINFER JOIN CODE"
_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----\n(.*?)-----END \1-----\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Membership:
    """What the file holds."""

    key: Ed25519PrivateKey
    leaf: x509.Certificate
    authority: x509.Certificate
    code: JoinCode | None


def identity_path(state_dir: Path) -> Path:
    return state_dir / FOLDER / FILE


def read(state_dir: Path) -> Membership | None:
    """What is stored, or None. Raises UsageError for a file that cannot be read or understood."""
    path = identity_path(state_dir)
    try:
        text = path.read_text("ascii")
        return _parse(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"Cannot read {path}: {error.strerror}.", "Run as the user who joined the fleet."
        ) from error
    except (ValueError, KeyError, UsageError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"The file {path} is damaged.",
            "Delete it, then run meshinfer join CODE: this PC gets a new identity.",
        ) from error


def write(state_dir: Path, membership: Membership) -> None:
    """Replace the file. Raises DiskFull, UsageError. Killed at any point, the old one stays."""
    path = identity_path(state_dir)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(path, _format(membership).encode("ascii"))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"No room to write {path}.", "Free some disk space.") from error
        raise UsageError(
            f"Cannot write {path}: {error.strerror}.",
            "Choose a folder that this user may write with --state-dir.",
        ) from error


def _replace(path: Path, data: bytes) -> None:
    # One fixed name, so that what an interrupted run left behind is overwritten, not collected.
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _format(membership: Membership) -> str:
    key = membership.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    parts = [key.decode()]
    parts += [
        certificate.public_bytes(Encoding.PEM).decode()
        for certificate in (membership.leaf, membership.authority)
    ]
    if membership.code is not None:
        # OpenSSL decodes every block on its way, wanted or not: the body must be base64.
        body = base64.b64encode(membership.code.reveal().encode()).decode()
        lines = "\n".join(re.findall(".{1,64}", body))
        parts.append(f"-----BEGIN {_CODE_LABEL}-----\n{lines}\n-----END {_CODE_LABEL}-----\n")
    return "".join(parts)


def _parse(text: str) -> Membership:
    blocks: dict[str, list[str]] = {}
    for found in _BLOCK.finditer(text):
        blocks.setdefault(found[1], []).append(found[0])
    key = load_pem_private_key(blocks["PRIVATE KEY"][0].encode(), None)
    leaf, authority = (
        x509.load_pem_x509_certificate(block.encode()) for block in blocks["CERTIFICATE"]
    )
    if not isinstance(key, Ed25519PrivateKey) or leaf.public_key() != key.public_key():
        raise ValueError("key and certificate do not belong together")
    code = None
    if _CODE_LABEL in blocks:
        body = "".join(blocks[_CODE_LABEL][0].splitlines()[1:-1])
        code = JoinCode.parse(base64.b64decode(body).decode())
    return Membership(key, leaf, authority, code)
