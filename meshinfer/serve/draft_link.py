"""The leader's end of the conversation with a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshinfer.core.draft import DraftNode, Horizon
from meshinfer.core.ids import Epoch, PlanId
from meshinfer.core.request import Sampling
from meshinfer.errors import ProtocolViolation
from meshinfer.link.base import Link
from meshinfer.wire.draft import (
    MAX_ENDED,
    DraftEnd,
    DraftNodes,
    DraftText,
    pack_tokens,
    unpack_nodes,
)


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """What both ends know of a draft conversation."""

    epoch: Epoch
    plan: PlanId
    vocabulary_size: int  # of the model that verifies: no draft is beyond it


@dataclass(frozen=True, slots=True)
class DraftNews:
    """What one step of the draft model brought: (sequence, guess), parents before children."""

    nodes: list[tuple[int, DraftNode]]
    rows: int
    compute_s: float


class DraftLink:
    """`link` is greeted already. All methods raise PeerLost."""

    def __init__(self, link: Link, facts: DraftFacts) -> None:
        self._link = link
        self._facts = facts

    async def tell(
        self,
        sequence: int,
        position: int,
        tokens: Sequence[int],
        horizon: Horizon,
        sampling: Sampling,
    ) -> None:
        """These tokens are known of a sequence, from `position` on."""
        facts = self._facts
        message = DraftText(
            epoch=facts.epoch,
            plan=facts.plan,
            sequence=sequence,
            position=position,
            count=len(tokens),
            depth=horizon.depth,
            least=horizon.least,
            sampling=replace(sampling, bias=()),
        )
        await self._link.send(message, pack_tokens(tokens))

    async def end(self, sequences: Sequence[int]) -> None:
        facts = self._facts
        for first in range(0, len(sequences), MAX_ENDED):
            gone = tuple(sequences[first : first + MAX_ENDED])
            await self._link.send(DraftEnd(facts.epoch, facts.plan, gone))

    async def receive(self) -> DraftNews:
        """Raises ProtocolViolation."""
        received = await self._link.receive()
        message = received.message
        if not isinstance(message, DraftNodes):
            raise ProtocolViolation(f"{type(message).__name__} from a draft")
        if (message.epoch, message.plan) != (self._facts.epoch, self._facts.plan):
            raise ProtocolViolation("drafts of another plan")
        nodes = unpack_nodes(received.payload, message, self._facts.vocabulary_size)
        return DraftNews(nodes, message.rows, message.compute_us / 1e6)

    async def close(self, reason: str) -> None:
        await self._link.close(reason)
