"""What speculation did, for status and metrics. Plain counting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_WEIGHT = 0.05  # of the newest row in what is shown as acceptance


@dataclass(slots=True)
class SpeculationFigures:
    """`proposed` drafts went out, `accepted` of them were drawn; `rounds` are rows that came back.
    Decisions: a row went out plain, as a chain, as a tree, ahead of another row, or was held back
    for drafts on their way."""

    proposed: int = 0
    accepted: int = 0
    rounds: int = 0
    tokens: int = 0  # that verified rows brought
    stale: int = 0  # rows that came back and meant nothing any more
    decisions: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("plain", "chain", "tree", "ahead", "held"), 0)
    )
    draft_steps: int = 0
    draft_rows: int = 0
    draft_s: float = 0.0
    _acceptance: float | None = None

    def decide(self, kind: str, drafts: int = 0) -> None:
        self.decisions[kind] += 1
        self.proposed += drafts

    def verified(self, drafts: int, accepted: int, tokens: int) -> None:
        self.rounds += 1
        self.accepted += accepted
        self.tokens += tokens
        if drafts:
            share = accepted / drafts
            before = share if self._acceptance is None else self._acceptance
            self._acceptance = before + (share - before) * _WEIGHT

    def drafted(self, rows: int, seconds: float) -> None:
        self.draft_steps += 1
        self.draft_rows += rows
        self.draft_s += seconds

    @property
    def acceptance(self) -> float | None:
        """Share of drafts that were right, of late; None while none was tried."""
        return self._acceptance

    def document(self) -> dict[str, Any]:
        """The `serving.speculation` part of the status."""
        return {
            "proposed": self.proposed,
            "accepted": self.accepted,
            "rounds": self.rounds,
            "tokens_per_round": round(self.tokens / self.rounds, 3) if self.rounds else None,
            "stale": self.stale,
            "decisions": dict(self.decisions),
            "draft_steps": self.draft_steps,
            "draft_s": round(self.draft_s, 3),
            "draft_ms": round(1000 * self.draft_s / self.draft_steps, 3)
            if self.draft_steps
            else None,
        }
