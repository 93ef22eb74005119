"""Message numbers. Append only: a number is never reused or given another meaning.

`welcome(channel)` is the table of limits that `frame.split` takes; `pack` and `unpack` join the
registry with frame and codec, so that links deal in messages and nothing else knows numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshinfer.errors import ProtocolViolation
from meshinfer.wire import (
    cache_census,
    child,
    codec,
    commit,
    draft,
    election,
    forward,
    frame,
    hello,
    membership,
    ring,
    step_payload,
    transfer,
)
from meshinfer.wire.frame import Limits

PROTOCOL_VERSION = 4
OLDEST_PROTOCOL_VERSION = 4

_K = 1 << 10
_M = 1 << 20
_SMALL = Limits(4 * _K, 0)
# Openings carry the biases of up to some dozen new sequences.
_STEP_HEADER = 512 * _K

MESH_MESSAGES: dict[int, tuple[type, Limits]] = {
    1: (hello.Hello, Limits(16 * _K, 0)),
    2: (hello.Refused, _SMALL),
    3: (membership.Heartbeat, Limits(16 * _K, 0)),
    4: (membership.Peers, Limits(32 * _K, 0)),
    5: (membership.Goodbye, _SMALL),
    6: (election.Campaign, _SMALL),
    7: (election.Grant, _SMALL),
    8: (election.Deny, _SMALL),
    9: (election.Renew, _SMALL),
    10: (election.Resign, _SMALL),
    11: (membership.Superseded, _SMALL),
    16: (commit.Prepare, Limits(256 * _K, 0)),
    17: (commit.Prepared, _SMALL),
    18: (commit.Declined, _SMALL),
    19: (commit.Load, Limits(20 * _M, 0)),
    20: (commit.StageReport, Limits(8 * _K, 0)),
    21: (commit.Activate, _SMALL),
    22: (commit.Retire, _SMALL),
    23: (commit.LoadDraft, Limits(20 * _M, 0)),
    32: (forward.Ask, Limits(20 * _M, 0)),
    33: (forward.AskStarted, _SMALL),
    34: (forward.AskDelta, Limits(64 * _K, 0)),
    35: (forward.AskFinished, _SMALL),
    36: (forward.AskFailed, Limits(16 * _K, 0)),
    37: (forward.AskCancel, _SMALL),
    38: (forward.FleetReport, Limits(256 * _K, 0)),
}
TRANSFER_MESSAGES: dict[int, tuple[type, Limits]] = {
    48: (transfer.TransferHello, _SMALL),
    49: (transfer.PieceRequest, _SMALL),
    50: (transfer.PieceData, Limits(4 * _K, 1 * _M)),
    51: (transfer.PieceMissing, _SMALL),
    52: (transfer.PiecesWanted, Limits(4 * _K, transfer.MOST_PIECES * transfer.DIGEST_BYTES)),
    53: (transfer.PiecesHeld, Limits(4 * _K, transfer.MOST_PIECES // 4)),
    54: (transfer.PieceWrong, _SMALL),
}
# The payload bound of a ring is narrowed to the plan's by the link (RING_PAYLOAD is the largest any
# plan may have: 8192 tokens of a 16384-wide model in f32 would be 512 MB; a step is chunked long
# before that).
RING_PAYLOAD = 64 * _M
RING_MESSAGES: dict[int, tuple[type, Limits]] = {
    64: (ring.RingHello, _SMALL),
    65: (ring.RingWelcome, _SMALL),
    66: (ring.StepFrame, Limits(_STEP_HEADER, RING_PAYLOAD)),
    67: (ring.SampledFrame, Limits(32 * _K, step_payload.MAX_DRAWN * 8)),
    68: (ring.StepFailed, Limits(32 * _K, 0)),
    69: (ring.CacheCensus, Limits(4 * _K, cache_census.MAX_CENSUS_BYTES)),
    70: (ring.CacheKeep, Limits(4 * _K, cache_census.MAX_SEQUENCES * 8)),
    71: (draft.DraftText, Limits(4 * _K, draft.MAX_TEXT_TOKENS * 4)),
    72: (draft.DraftEnd, Limits(32 * _K, 0)),
    73: (draft.DraftNodes, Limits(4 * _K, draft.MAX_NODES * draft.NODE.itemsize)),
}
# Between an agent and its own child processes, over pipes; never on a network.
CHILD_MESSAGES: dict[int, tuple[type, Limits]] = {
    80: (child.StageJob, Limits(256 * _K, 0)),
    81: (child.StageNews, Limits(8 * _K, 0)),
    82: (child.StageGo, _SMALL),
    83: (child.StageLeave, _SMALL),
    96: (child.WeightsJob, Limits(16 * _K, 0)),
    97: (child.WeightsNews, _SMALL),
    98: (child.WeightsDone, Limits(64 * _M, 0)),
    99: (child.WeightsFailed, Limits(16 * _K, 0)),
}
CHANNEL_MESSAGES = {
    "mesh": MESH_MESSAGES,
    "transfer": TRANSFER_MESSAGES,
    "ring": RING_MESSAGES,
    "child": CHILD_MESSAGES,
}

_NUMBERS: dict[type, int] = {
    kind: number for messages in CHANNEL_MESSAGES.values() for number, (kind, _) in messages.items()
}
_LIMITS: dict[int, Limits] = {
    number: limits
    for messages in CHANNEL_MESSAGES.values()
    for number, (_, limits) in messages.items()
}
_KINDS: dict[int, type] = {number: kind for kind, number in _NUMBERS.items()}


def welcome(channel: str) -> dict[int, Limits]:
    """Numbers and limits that may arrive on `channel`."""
    return {number: limits for number, (_, limits) in CHANNEL_MESSAGES[channel].items()}


def largest_frame(limits: Iterable[Limits]) -> int:
    """What a transport must be ready to take, in bytes."""
    return max(limit.frame for limit in limits)


def pack(message: object, payload: bytes | bytearray | memoryview = b"") -> bytearray:
    """The frame of a registered message. Raises KeyError for any other (a bug), ProtocolViolation
    for one that is over its limit: the other side would close the link."""
    return frame.join(*_checked(message, payload), payload)


def pack_head(message: object, payload: bytes | bytearray | memoryview = b"") -> bytes:
    """The frame without its payload, which follows as it is: no copy. Raises as `pack`."""
    return frame.head(*_checked(message, payload), payload)


def _checked(message: object, payload: bytes | bytearray | memoryview) -> tuple[int, bytes]:
    """Number and header of a message that is within its limits."""
    number = _NUMBERS[type(message)]
    header = codec.encode(message)
    size = memoryview(payload).nbytes
    limit = _LIMITS[number]
    if len(header) > limit.header or size > limit.payload:
        raise ProtocolViolation(
            f"{type(message).__name__} of {len(header)} + {size} bytes is over its limit of "
            f"{limit.header} + {limit.payload}"
        )
    return number, header


def unpack(
    data: bytes | bytearray | memoryview, limits: dict[int, Limits]
) -> tuple[Any, memoryview]:
    """Message and payload of a frame. Raises ProtocolViolation."""
    parts = frame.split(data, limits)
    return codec.decode(_KINDS[parts.number], parts.header), parts.payload
