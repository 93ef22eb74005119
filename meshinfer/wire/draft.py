"""The draft conversation, on a ring link between the leader and the PC with the draft model.

leader              draft
DraftText    ->          this is known of a sequence; guess on from there
DraftEnd     ->          these sequences are over
             <-  DraftNodes: more guesses, after every step of the draft model
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.draft import DraftNode
from meshinfer.core.ids import Epoch, PlanId
from meshinfer.core.request import Sampling
from meshinfer.errors import ProtocolViolation

NODE = np.dtype(
    [
        ("sequence", "<u4"),
        ("number", "<u4"),
        ("parent", "<i8"),  # -1: none
        ("position", "<u4"),
        ("token", "<i4"),
        ("chance", "<f4"),
    ]
)
MAX_NODES = 1024
MAX_TEXT_TOKENS = 1 << 17
MAX_ENDED = 4096
MOST_TEMPERATURE = 100.0  # as in a step's rows


@dataclass(frozen=True, slots=True)
class DraftText:
    """Known tokens of a sequence from `position` on, in the payload (int32, little-endian): they
    replace all that was known or guessed from there on where they differ. `depth` and `least` are
    the Horizon of what is of use."""

    epoch: Epoch
    plan: PlanId
    sequence: int
    position: int
    count: int
    depth: int
    least: float
    sampling: Sampling  # without its bias


@dataclass(frozen=True, slots=True)
class DraftEnd:
    epoch: Epoch
    plan: PlanId
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftNodes:
    """Guesses of one step of the draft model, parents before children."""

    epoch: Epoch
    plan: PlanId
    count: int
    rows: int  # tokens that the step computed
    compute_us: int


def pack_tokens(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def unpack_tokens(payload: memoryview, text: DraftText, vocabulary_size: int) -> list[int]:
    """Raises ProtocolViolation."""
    if not 0 < text.count <= MAX_TEXT_TOKENS or len(payload) != 4 * text.count:
        raise ProtocolViolation("a text for drafts does not have the announced size")
    is_place = 0 <= text.sequence < 2**32 and 0 <= text.position < 2**32
    if not is_place or not 0 <= text.depth < 2**16 or not 0 <= text.least <= 1:
        raise ProtocolViolation("a text for drafts at an impossible place")
    _check_sampling(text.sampling)
    tokens: NDArray[np.int32] = np.frombuffer(payload, "<i4")
    if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary_size:
        raise ProtocolViolation(f"a token id outside 0..{vocabulary_size - 1}")
    known: list[int] = tokens.tolist()
    return known


def _check_sampling(sampling: Sampling) -> None:
    """What guesses are drawn with: the rest is not looked at."""
    if not (
        0 <= sampling.temperature <= MOST_TEMPERATURE
        and 0 < sampling.top_p <= 1
        and 0 <= sampling.min_p <= 1
        and 0 <= sampling.top_k < 2**32
        and 0 <= sampling.seed < 2**64
    ):  # a NaN is in no range
        raise ProtocolViolation("a text for drafts with impossible sampling values")


def pack_nodes(nodes: Sequence[tuple[int, DraftNode]]) -> bytes:
    """`nodes` are (sequence, guess)."""
    rows = [
        (
            key,
            one.number,
            -1 if one.parent is None else one.parent,
            one.position,
            one.token,
            one.chance,
        )
        for key, one in nodes
    ]
    return np.array(rows, NODE).tobytes()


def unpack_nodes(
    payload: memoryview, message: DraftNodes, vocabulary_size: int
) -> list[tuple[int, DraftNode]]:
    """(sequence, guess) of each. Raises ProtocolViolation."""
    if not 0 <= message.count <= MAX_NODES or len(payload) != NODE.itemsize * message.count:
        raise ProtocolViolation("drafts do not have the announced size")
    table = np.frombuffer(payload, NODE)
    if not len(table):
        return []
    if not 0 <= int(table["token"].min()) <= int(table["token"].max()) < vocabulary_size:
        raise ProtocolViolation(f"a draft outside 0..{vocabulary_size - 1}")
    if not ((table["chance"] >= 0) & (table["chance"] <= 1)).all():  # a NaN is not, either
        raise ProtocolViolation("a draft with an impossible chance")
    if not ((table["parent"] >= -1) & (table["parent"] < table["number"])).all():
        raise ProtocolViolation("a draft in front of its parent")
    return [
        (key, DraftNode(number, None if parent < 0 else parent, position, token, chance))
        for key, number, parent, position, token, chance in table.tolist()
    ]
