"""The ring conversation: steps and activations go down the stages, tokens come back to the leader.

Payload of `StepFrame`: the row table, the token ids, then the activation (none on the way to the
first stage). Payload of `SampledFrame`: 8 bytes a row that asked for logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.ids import Epoch, PlanId
from meshinfer.core.request import Sampling
from meshinfer.core.step import Row, Sampled, StageTiming, Step
from meshinfer.errors import ProtocolViolation
from meshinfer.wire.tensor import tensor_bytes, tensor_from

ROW = np.dtype(
    [
        ("sequence", "<u4"),
        ("position", "<u4"),
        ("count", "<u4"),
        ("logits", "<u4"),
        ("fork_from", "<i8"),  # -1: none
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("top_k", "<u4"),
        ("seed", "<u8"),
    ]
)
SAMPLED = np.dtype([("token", "<i4"), ("logprob", "<f4")])

MAX_ROWS = 1024
MAX_STEP_TOKENS = 8192
MAX_RELEASED = 4096


@dataclass(frozen=True, slots=True)
class RingHello:
    """First message of a consumer that dials its producer: which plan, which edge.

    Edge k feeds stage k; edge n of an n-stage pipeline feeds the leader.
    """

    epoch: Epoch
    plan: PlanId
    pipeline: int
    edge: int


@dataclass(frozen=True, slots=True)
class RingWelcome:
    """The producer's answer: it will send this plan's steps on this link."""

    plan: PlanId


@dataclass(frozen=True, slots=True)
class StepFrame:
    """Header of one step on one edge."""

    epoch: Epoch
    plan: PlanId
    edge: int
    step: int
    rows: int
    tokens: int
    released: tuple[int, ...]
    timings: tuple[StageTiming, ...]  # of the stages already passed


@dataclass(frozen=True, slots=True)
class SampledFrame:
    """Header of what the last stage drew for one step."""

    epoch: Epoch
    plan: PlanId
    step: int
    count: int
    timings: tuple[StageTiming, ...]


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A stage could not compute a step; its sequences are lost, the ring lives on or ends."""

    epoch: Epoch
    plan: PlanId
    step: int
    code: str
    cause: str


def max_payload(width: int, precision_bytes: int) -> int:
    """Upper bound in bytes of a step's payload on an edge that carries `width` numbers a token."""
    table = MAX_ROWS * ROW.itemsize + MAX_STEP_TOKENS * 4
    return table + MAX_STEP_TOKENS * width * precision_bytes


def pack_step(step: Step, hidden: NDArray[Any] | None) -> bytes:
    """Row table, token ids, activation ([tokens, hidden]) as one payload."""
    table = np.empty(len(step.rows), ROW)
    for index, row in enumerate(step.rows):
        sampling = row.sampling
        table[index] = (
            row.sequence,
            row.position,
            row.count,
            row.logits,
            -1 if row.fork_from is None else row.fork_from,
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.seed,
        )
    tokens = np.asarray(step.tokens, "<i4")
    parts: list[bytes | memoryview] = [table.tobytes(), tokens.tobytes()]
    if hidden is not None:
        parts.append(tensor_bytes(hidden))
    return b"".join(parts)


def unpack_step(
    frame: StepFrame,
    payload: memoryview,
    *,
    precision: str,
    width: int | None,
    vocabulary_size: int,
    context_length: int,
) -> tuple[Step, NDArray[Any] | None]:
    """The step and its [tokens, width] activation (None when `width` is None).

    Every number that native code will use as an index is range-checked here.
    Raises ProtocolViolation.
    """
    if not 0 < frame.rows <= MAX_ROWS or not 0 < frame.tokens <= MAX_STEP_TOKENS:
        raise ProtocolViolation(f"a step of {frame.rows} rows and {frame.tokens} tokens")
    if len(frame.released) > MAX_RELEASED or not all(0 <= one < 2**32 for one in frame.released):
        raise ProtocolViolation("a step releases impossible sequences")
    table_end = frame.rows * ROW.itemsize
    tokens_end = table_end + frame.tokens * 4
    if len(payload) < tokens_end:
        raise ProtocolViolation("a step is shorter than its row table")
    table = np.frombuffer(payload[:table_end], ROW)
    tokens = np.frombuffer(payload[table_end:tokens_end], "<i4")
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocabulary_size:
        raise ProtocolViolation(f"a token id outside 0..{vocabulary_size - 1}")
    rows = tuple(_row(entry, context_length) for entry in table.tolist())
    if sum(row.count for row in rows) != frame.tokens:
        raise ProtocolViolation("the rows' token counts do not add up")
    if len({row.sequence for row in rows}) != len(rows):
        raise ProtocolViolation("a sequence has two rows in one step")
    step = Step(frame.step, rows, tuple(tokens.tolist()), frame.released)
    if width is None:
        if len(payload) != tokens_end:
            raise ProtocolViolation("an activation on the way to the first stage")
        return step, None
    return step, tensor_from(payload[tokens_end:], precision, frame.tokens, width)


def _row(entry: tuple[Any, ...], context_length: int) -> Row:
    sequence, position, count, logits, fork_from, temperature, top_p, top_k, seed = entry
    if count < 1 or logits > count or position + count > context_length:
        raise ProtocolViolation(
            f"a row with {count} tokens at position {position} wants {logits} logits; "
            f"the context is {context_length}"
        )
    if not 0.0 <= temperature <= 100.0 or not 0.0 < top_p <= 1.0 or fork_from < -1:
        raise ProtocolViolation("a row with impossible sampling values")
    # float32 on the wire must not turn 0.9 into 0.8999999761581421 for one PC only: every stage
    # reads the same table, the leader never draws.
    sampling = Sampling(temperature, top_p, top_k, seed)
    return Row(sequence, position, count, logits, sampling, None if fork_from < 0 else fork_from)


def pack_sampled(drawn: tuple[Sampled, ...]) -> bytes:
    """8 bytes a drawn token."""
    return np.array([(one.token, one.logprob) for one in drawn], SAMPLED).tobytes()


def unpack_sampled(
    frame: SampledFrame, payload: memoryview, vocabulary_size: int
) -> tuple[Sampled, ...]:
    """What the last stage drew, in row order. Raises ProtocolViolation."""
    if len(payload) != frame.count * SAMPLED.itemsize or frame.count > MAX_STEP_TOKENS:
        raise ProtocolViolation("the drawn tokens do not have the announced size")
    table = np.frombuffer(payload, SAMPLED)
    if frame.count and not (int(table["token"].min()) >= 0 and np.isfinite(table["logprob"]).all()):
        raise ProtocolViolation("a drawn token is negative or its log-probability not finite")
    if frame.count and int(table["token"].max()) >= vocabulary_size:
        raise ProtocolViolation(f"a drawn token is not below {vocabulary_size}")
    return tuple(Sampled(token, logprob) for token, logprob in table.tolist())
