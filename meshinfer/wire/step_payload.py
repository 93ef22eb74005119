"""Payloads of the ring: a step and its activations as bytes, and what was drawn for it.

A step is its row table, the token ids, the masks of constrained rows, the parents of token trees,
the slots that rows keep, then the activation (none on the way to the first stage). What was drawn
is 8 bytes a row that asked for logits, then 8 bytes for every alternative that was asked for. All
numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.request import MOST_ALTERNATIVES, Sampling
from meshinfer.core.step import Opening, Row, Sampled, Step, is_tree, moves_to_front
from meshinfer.errors import ProtocolViolation
from meshinfer.wire.ring import SampledFrame, StepFrame
from meshinfer.wire.tensor import tensor_bytes, tensor_from

ROW = np.dtype(
    [
        ("sequence", "<u4"),
        ("position", "<u4"),
        ("count", "<u4"),
        ("logits", "<u4"),
        ("fork_from", "<i8"),  # -1: none
        ("seed", "<u8"),
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("repetition_penalty", "<f4"),
        ("presence_penalty", "<f4"),
        ("frequency_penalty", "<f4"),
        ("top_k", "<u4"),
        ("logprobs", "<i1"),  # -1: not wanted
        ("masks", "<u1"),  # 1: a mask for each of its logit rows follows the token ids
        ("tree", "<u1"),  # 1: the parent of each of its tokens follows the masks
        ("kept", "<u1"),  # slots that move, which follow the parents
    ]
)
PARENT = np.dtype("<i2")
SLOT = np.dtype("<u4")
SAMPLED = np.dtype([("token", "<i4"), ("logprob", "<f4")])

MAX_ROWS = 1024
MAX_STEP_TOKENS = 8192
MAX_RELEASED = 4096
MAX_TREE = 64
"""Tokens of a row that is a tree, and slots that a row keeps."""

LEAST_LOGPROB = -9999.0
"""What stands for "impossible", as OpenAI has it: nothing on the wire is infinite."""

MAX_DRAWN = MAX_STEP_TOKENS * (1 + MOST_ALTERNATIVES)

_TEMPERATURES = (0.0, 100.0)
_PENALTIES = (-100.0, 100.0)


def mask_bytes(vocabulary_size: int) -> int:
    """Bytes of the mask of one logit row: a bit a token, in whole 32-bit words."""
    return (vocabulary_size + 31) // 32 * 4


def pack_step(step: Step, hidden: NDArray[Any] | None) -> bytes:
    """Row table, token ids, masks, trees, kept slots, activation ([tokens, width]) as one."""
    table = np.array([_entry(row) for row in step.rows], ROW)
    parts: list[bytes | memoryview] = [table.tobytes(), np.array(step.tokens, "<i4").tobytes()]
    parts += [row.mask for row in step.rows if row.mask]
    parts += [np.array(row.parents, PARENT).tobytes() for row in step.rows if row.parents]
    parts += [np.array(row.kept, SLOT).tobytes() for row in step.rows if row.kept]
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
    _check_counts(frame)
    table_end = frame.rows * ROW.itemsize
    tokens_end = table_end + frame.tokens * 4
    if len(payload) < tokens_end:
        raise ProtocolViolation("a step is shorter than its row table")
    entries = np.frombuffer(payload[:table_end], ROW).tolist()
    tokens = np.frombuffer(payload[table_end:tokens_end], "<i4")
    if frame.tokens and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary_size:
        raise ProtocolViolation(f"a token id outside 0..{vocabulary_size - 1}")
    masks, end = _masks(entries, payload, tokens_end, mask_bytes(vocabulary_size))
    parents, end = _numbers(payload, end, PARENT, [one[2] * one[-2] for one in entries])
    kept, end = _numbers(payload, end, SLOT, [one[-1] for one in entries])
    rows = tuple(
        _row(entry, mask, tree, slots, context_length)
        for entry, mask, tree, slots in zip(entries, masks, parents, kept, strict=True)
    )
    _check_rows(rows, frame, vocabulary_size)
    step = Step(frame.step, rows, tuple(tokens.tolist()), frame.released, frame.openings)
    if width is None:
        if len(payload) != end:
            raise ProtocolViolation("an activation on the way to the first stage")
        return step, None
    return step, tensor_from(payload[end:], precision, frame.tokens, width)


def pack_sampled(drawn: Sequence[Sampled]) -> bytes:
    """8 bytes a drawn token, then 8 bytes an alternative, in row order."""
    pairs = [(one.token, one.logprob) for one in drawn]
    pairs += [pair for one in drawn for pair in one.alternatives]
    table = np.array(pairs, SAMPLED)
    np.maximum(table["logprob"], LEAST_LOGPROB, out=table["logprob"])
    return table.tobytes()


def unpack_sampled(
    frame: SampledFrame, payload: memoryview, wanted: Sequence[int], vocabulary_size: int
) -> tuple[Sampled, ...]:
    """What the last stage drew, in row order. `wanted` says, for each token that is due, how many
    alternatives come with it. Raises ProtocolViolation."""
    if frame.count != len(wanted) or frame.alternatives != sum(wanted):
        raise ProtocolViolation(
            f"{frame.count} tokens and {frame.alternatives} alternatives came back where "
            f"{len(wanted)} and {sum(wanted)} are due"
        )
    if len(payload) != (frame.count + frame.alternatives) * SAMPLED.itemsize:
        raise ProtocolViolation("the drawn tokens do not have the announced size")
    table = np.frombuffer(payload, SAMPLED)
    if len(table):
        if not 0 <= int(table["token"].min()) <= int(table["token"].max()) < vocabulary_size:
            raise ProtocolViolation(f"a drawn token outside 0..{vocabulary_size - 1}")
        if not np.isfinite(table["logprob"]).all():
            raise ProtocolViolation("a log-probability is not finite")
    pairs = table.tolist()
    drawn, place = [], frame.count
    for (token, logprob), count in zip(pairs, wanted, strict=False):
        drawn.append(Sampled(token, logprob, tuple(pairs[place : place + count])))
        place += count
    return tuple(drawn)


def _entry(row: Row) -> tuple[Any, ...]:
    sampling = row.sampling
    return (
        row.sequence,
        row.position,
        row.count,
        row.logits,
        -1 if row.fork_from is None else row.fork_from,
        sampling.seed,
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.top_k,
        -1 if sampling.logprobs is None else sampling.logprobs,
        1 if row.mask else 0,
        1 if row.parents else 0,
        len(row.kept),
    )


def _check_counts(frame: StepFrame) -> None:
    if frame.rows == frame.tokens == 0 and frame.released:
        pass  # nothing but the end of sequences
    elif not 0 < frame.rows <= MAX_ROWS or not 0 < frame.tokens <= MAX_STEP_TOKENS:
        raise ProtocolViolation(f"a step of {frame.rows} rows and {frame.tokens} tokens")
    if len(frame.released) > MAX_RELEASED or not all(0 <= one < 2**32 for one in frame.released):
        raise ProtocolViolation("a step releases impossible sequences")


def _masks(
    entries: list[tuple[Any, ...]], payload: memoryview, start: int, size: int
) -> tuple[list[bytes], int]:
    """The mask of each row (empty where it has none), and where what follows them begins."""
    masks = []
    for entry in entries:
        count, logits, flag = entry[2], entry[3], entry[-3]
        if flag > 1 or (flag and not 0 < logits <= count):
            raise ProtocolViolation("a mask for a row without logits")
        end = start + size * logits * flag
        masks.append(bytes(payload[start:end]))
        if len(masks[-1]) != end - start:
            raise ProtocolViolation("a step is shorter than its masks")
        start = end
    return masks, start


def _numbers(
    payload: memoryview, start: int, kind: np.dtype[Any], counts: list[int]
) -> tuple[list[tuple[int, ...]], int]:
    """So many numbers for each row, and where what follows them begins."""
    end = start + sum(counts) * kind.itemsize
    if len(payload) < end:
        raise ProtocolViolation("a step is shorter than its token trees")
    numbers = iter(np.frombuffer(payload[start:end], kind).tolist())
    return [tuple(islice(numbers, count)) for count in counts], end


def _row(
    entry: tuple[Any, ...],
    mask: bytes,
    parents: tuple[int, ...],
    kept: tuple[int, ...],
    context_length: int,
) -> Row:
    sequence, position, count, logits, fork_from, seed, *floats, top_k, logprobs, _, tree, _ = entry
    if count < 1 or logits > count or position + count > context_length:
        raise ProtocolViolation(
            f"a row with {count} tokens at position {position} wants {logits} logits; "
            f"the context is {context_length}"
        )
    if not -1 <= fork_from < 2**32 or not -1 <= logprobs <= MOST_ALTERNATIVES:
        raise ProtocolViolation("a row with impossible references")
    if tree > 1 or (tree and (count != logits or count > MAX_TREE or not is_tree(parents))):
        raise ProtocolViolation("a row with an impossible token tree")
    if kept and (fork_from >= 0 or not _may_be_kept(kept, position, context_length)):
        raise ProtocolViolation("a row that keeps impossible slots")
    # float32 on the wire must not turn 0.9 into 0.8999999761581421 for one PC only: every stage
    # reads the same table, the leader never draws.
    temperature, top_p, min_p, repetition, presence, frequency = floats
    sampling = Sampling(
        temperature=_within(temperature, *_TEMPERATURES),
        top_p=_within(top_p, 1e-30, 1.0),
        top_k=top_k,
        seed=seed,
        min_p=_within(min_p, 0.0, 1.0),
        repetition_penalty=_within(repetition, 1e-30, _PENALTIES[1]),
        presence_penalty=_within(presence, *_PENALTIES),
        frequency_penalty=_within(frequency, *_PENALTIES),
        logprobs=None if logprobs < 0 else logprobs,
    )
    fork = None if fork_from < 0 else fork_from
    return Row(sequence, position, count, logits, sampling, fork, mask, parents, kept)


def _may_be_kept(kept: tuple[int, ...], position: int, context_length: int) -> bool:
    is_bounded = len(kept) <= MAX_TREE and kept[-1] < context_length
    return is_bounded and moves_to_front(kept, position)


def _within(value: float, least: float, most: float) -> float:
    if not least <= value <= most:  # a NaN is not, either
        raise ProtocolViolation("a row with impossible sampling values")
    return value


def _check_rows(rows: tuple[Row, ...], frame: StepFrame, vocabulary_size: int) -> None:
    if sum(row.count for row in rows) != frame.tokens:
        raise ProtocolViolation("the rows' token counts do not add up")
    sequences = {row.sequence for row in rows}
    if len(sequences) != len(rows):
        raise ProtocolViolation("a sequence has two rows in one step")
    opened = {one.sequence for one in frame.openings}
    if len(opened) != len(frame.openings) or not opened <= sequences:
        raise ProtocolViolation("a step opens sequences that have no row in it")
    for opening in frame.openings:
        _check_opening(opening, vocabulary_size)


def _check_opening(opening: Opening, vocabulary_size: int) -> None:
    tokens = {token for token, _ in opening.bias}
    if len(tokens) != len(opening.bias) or not all(0 <= one < vocabulary_size for one in tokens):
        raise ProtocolViolation("a bias for impossible tokens")
    if opening.prompt_length < 0:
        raise ProtocolViolation("a prompt of negative length")
