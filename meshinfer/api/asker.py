"""Who asks, for fairness between users: a name for every request. Never logged."""

from __future__ import annotations

import hashlib

from aiohttp import web

from meshinfer.api.fields import Fields, whole_text, wrong

_LONGEST = 512  # characters
_DIGEST_DIGITS = 12
_PURPOSE = b"meshinfer asker\0"  # so that this digest is of use for nothing else


def asker(request: web.Request) -> str:
    """The key that `request` carries, as a short digest, or else the address it comes from.

    A proxy's X-Forwarded-For is not believed: anybody may send one.
    """
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        return f"address:{request.remote or 'unknown'}"
    # surrogateescape: how aiohttp keeps header bytes that are not UTF-8
    material = _PURPOSE + key.strip().encode("utf-8", "surrogateescape")
    return f"key:{hashlib.sha256(material).hexdigest()[:_DIGEST_DIGITS]}"


def parse_user(fields: Fields, default: str) -> str:
    """OpenAI's `user`, or `default` when the body names none. Raises InvalidRequest."""
    value = fields.get("user")
    if value is None or value == "":
        return default
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise wrong("user", f"a string of at most {_LONGEST} characters")
    return whole_text("user", value)
