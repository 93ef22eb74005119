"""What a person may set about the API. Made by node from its settings."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """`key` None: no key is asked for, which is only allowed on a loopback address.

    An allowed origin is what a browser sends: `https://chat.example`. `*` allows every page and
    needs a key.
    """

    key: str | None
    allowed_origins: tuple[str, ...] = ()
    body_limit: int = 16 * MIB  # bytes; aiohttp's own limit of 1 MiB refuses long documents
    keep_alive_s: float = 8.0  # between comments of a silent stream; proxies give up from 20 s on
    header_patience_s: float = 0.7  # how long a stream's status may wait for the first event
    stall_s: float = 60.0  # a client that takes nothing for so long is as good as gone
    drain_s: float = 5.0  # what running answers get to end by themselves when the server closes
