"""Why a PC may be alone, in words for its log (case J01). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.fleet import Address


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known after a while without any other PC."""

    listening_on: tuple[Address, ...]
    mdns: bool
    found: int  # PCs of this fleet that mDNS told of
    other_fleets: int
    failing: tuple[str, ...]  # who was dialled in vain, and where
    refusals: int  # PCs that were not let in, or did not let this one in


def likely_causes(now: Situation) -> tuple[str, ...]:
    """The likeliest first; always at least one."""
    causes: list[str] = []
    if now.refusals:
        causes.append(
            f"{now.refusals} attempts were refused: another join code, a revoked PC or another "
            "version; `meshinfer status` lists them"
        )
    if now.failing:
        causes.append(
            f"nobody answered at {'; '.join(now.failing[:4])}: the PC is off, or its firewall "
            "blocks the port of meshinfer"
        )
    if now.other_fleets:
        causes.append(
            f"{now.other_fleets} other fleet(s) are on this network: join one with its code"
        )
    if not now.mdns:
        causes.append("mDNS is off here: name a PC with --peer HOST:PORT")
    elif not now.found:
        causes.append(
            "mDNS found nobody: no other agent runs, UDP port 5353 is blocked, or the Wi-Fi keeps "
            "its clients apart; name a PC with --peer HOST:PORT"
        )
    if not now.listening_on:
        causes.append("this PC has no address that others can reach")
    return tuple(causes) or ("no other agent of this fleet runs",)
