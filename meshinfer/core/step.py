"""One step of one micro-batch: the only thing that stages need to agree on.

Every engine derives its own cache handling from these rows. Block ids never leave a stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from meshinfer.core.request import GREEDY, Sampling


@dataclass(frozen=True, slots=True)
class Row:
    """`count` new tokens of one sequence.

    The cache of `sequence` is first cut to `position` tokens (a rewind when it held more, an error
    when it held fewer), then the new tokens occupy positions `position .. position + count`.
    """

    sequence: int  # unique for the life of a plan, so that a late frame never meets a reused id
    position: int
    count: int
    logits: int  # how many of the last tokens need logits; 0 for all but the last prompt chunk
    sampling: Sampling = GREEDY  # its `bias` travels in the sequence's Opening
    fork_from: int | None = None  # share the first `position` cached tokens of that sequence
    mask: bytes = b""  # a little-endian bit a token for each logit row: allowed; empty: all are
    parents: tuple[int, ...] = ()
    """Of a token tree: for each token the place of its parent in this row, -1 for the first, which
    follows the cache. Parents come first; a token sees its ancestors and the cache, and stands one
    position behind its parent. In the cache it takes the slot of its place in the row. Empty: each
    token follows the one before it."""
    kept: tuple[int, ...] = ()
    """Slots of the sequence's cache, ascending, that move to the slots right before `position`,
    before anything else is done: the branch of an earlier tree that was accepted."""

    @property
    def decodes(self) -> bool:
        """Every token asks for its successor, as the last known one and drafts behind it do;
        anything else is a part of a prompt."""
        return self.count == self.logits


def is_tree(parents: tuple[int, ...]) -> bool:
    """Whether every parent is in front of its child, and all come from the first token."""
    return parents[:1] == (-1,) and all(
        0 <= parent < place for place, parent in enumerate(parents[1:], 1)
    )


def moves_to_front(kept: tuple[int, ...], position: int) -> bool:
    """Whether slots that are kept ascend, and none moves away from the front."""
    if not 0 <= position - len(kept) <= kept[0]:
        return False
    return all(one < other for one, other in pairwise(kept))


@dataclass(frozen=True, slots=True)
class Opening:
    """What stages must know of a sequence from its first row on."""

    sequence: int
    prompt_length: int  # tokens that were not drawn: penalties tell them apart
    bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    number: int  # successive within a plan
    rows: tuple[Row, ...]
    tokens: tuple[int, ...]  # ids of all rows, joined: sum of counts
    released: tuple[int, ...] = ()  # sequences whose cache may go before this step runs
    openings: tuple[Opening, ...] = ()  # of sequences whose first row is in this step

    @property
    def token_count(self) -> int:
        return len(self.tokens)

    @property
    def logit_count(self) -> int:
        return sum(row.logits for row in self.rows)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A drawn token and, when they were asked for, log-probabilities: those of the distribution
    before temperature, penalties, mask and cuts."""

    token: int
    logprob: float = 0.0
    alternatives: tuple[tuple[int, float], ...] = ()  # most likely first


@dataclass(frozen=True, slots=True)
class StageTiming:
    """Where one stage's time went in one step, in microseconds."""

    wait_us: int  # from the end of its previous step to the arrival of this frame
    queue_us: int  # from arrival to the start of the computation
    compute_us: int
    handle_us: int  # checking, packing, encryption and the write
