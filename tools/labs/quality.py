"""How good a network is, one way between two PCs, and what each method can do of it. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from meshinfer.errors import UsageError

LINK, PROXY, SWITCH = "link", "proxy", "switch"
METHODS = (LINK, PROXY, SWITCH)


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """Raises UsageError for what no network has."""

    delay_ms: float = 0.0  # of each message, one way
    jitter_ms: float = 0.0  # the delay is this much more or less, evenly; order is kept
    rate_mbit: float = 0.0  # million bits a second; 0: as fast as this machine can
    loss: float = 0.0  # percent of Ethernet frames
    cut: bool = False  # nothing arrives, and nobody is told

    def __post_init__(self) -> None:
        for name, value, most in (
            ("delay", self.delay_ms, 10_000.0),
            ("jitter", self.jitter_ms, 10_000.0),
            ("rate", self.rate_mbit, 1e6),
            ("loss", self.loss, 100.0),
        ):
            if not 0 <= value <= most:
                raise UsageError(f"A {name} of {value:g} is not from 0 to {most:g}.")

    def document(self) -> dict[str, Any]:
        """For JSON; `LinkQuality(**document)` is the way back."""
        return asdict(self)


def check_method(method: str, quality: LinkQuality) -> None:
    """Raises UsageError for what `method` cannot do."""
    if method == LINK and quality != LinkQuality(delay_ms=quality.delay_ms):
        raise UsageError(
            "The method `link` is --hop-delay of the agents: it has a delay and nothing else.",
            "Use --method proxy or, for loss too, --method switch.",
        )
    if method == PROXY and quality.loss:
        raise UsageError(
            "A TCP proxy has no loss: below it TCP sends again what was lost.",
            "Use --method switch, or more jitter: that is how TCP shows loss.",
        )
