"""Which ports of an Ethernet switch a frame goes out of. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_ADDRESS = 6  # bytes; a frame begins with its target's, then comes its source's


class LearningSwitch:
    """Remembers behind which port a PC was last heard; floods what it does not know."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._ports = tuple(ports)
        self._behind: dict[bytes, int] = {}

    def ways(self, port: int, frame: bytes) -> tuple[int, ...]:
        """Ports for a frame that came in at `port`; none for one that is no frame."""
        if len(frame) < 2 * _ADDRESS:
            return ()
        target, source = frame[:_ADDRESS], frame[_ADDRESS : 2 * _ADDRESS]
        if not source[0] & 1:
            self._behind[source] = port
        known = self._behind.get(target) if not target[0] & 1 else None  # the bit of multicast
        if known is not None:
            return (known,) if known != port else ()
        return tuple(one for one in self._ports if one != port)
