"""Steps and drawn tokens: what comes out is what went in, and nothing else gets through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshinfer.core.ids import NO_EPOCH, PlanId
from meshinfer.core.request import Sampling
from meshinfer.core.step import Opening, Row, Sampled, Step
from meshinfer.errors import ProtocolViolation
from meshinfer.wire import ring, step_payload

ROWS = (
    Row(3, 0, 2, 0, Sampling(0.5, 0.25, 7, 2**64 - 1)),
    Row(4, 6, 1, 1, Sampling(0.0, logprobs=3), fork_from=3, mask=bytes(range(16))),
)
OPENINGS = (Opening(4, 6, ((99, -1.5),)),)
STEP = Step(9, ROWS, (10, 11, 12), (1, 2), OPENINGS)
HIDDEN = np.arange(12, dtype=np.float32).reshape(3, 4)
BOUNDS: dict[str, Any] = {"precision": "f32", "vocabulary_size": 100, "context_length": 8}


def step_frame(**changes: Any) -> ring.StepFrame:
    fields = {
        "epoch": NO_EPOCH,
        "plan": PlanId("p"),
        "edge": 1,
        "step": 9,
        "rows": 2,
        "tokens": 3,
        "released": (1, 2),
        "openings": OPENINGS,
        "timings": (),
    }
    return ring.StepFrame(**(fields | changes))


def unpack(frame: ring.StepFrame, payload: bytes, width: int | None = 4, **changes: Any) -> Any:
    return step_payload.unpack_step(frame, memoryview(payload), width=width, **(BOUNDS | changes))


def payload_of(rows: tuple[Row, ...], tokens: tuple[int, ...]) -> bytes:
    return step_payload.pack_step(Step(9, rows, tokens), None)


def test_a_step_comes_back_whole() -> None:
    step, hidden = unpack(step_frame(), step_payload.pack_step(STEP, HIDDEN))
    assert step == STEP
    assert hidden.tobytes() == HIDDEN.tobytes()


def test_the_first_stage_gets_no_activation() -> None:
    step, hidden = unpack(step_frame(), step_payload.pack_step(STEP, None), None)
    assert (step, hidden) == (STEP, None)


def test_a_row_has_the_literal_bytes() -> None:
    sampling = Sampling(1.0, 0.5, 4, 5, 0.25, 2.0, -1.0, -2.0, 20)
    row = Row(1, 2, 3, 1, sampling, mask=b"\x01\x02\x03\x04")
    assert payload_of((row,), (6, 7, 8)) == bytes.fromhex(
        "01000000 02000000 03000000 01000000 ffffffffffffffff 0500000000000000"
        "0000803f 0000003f 0000803e 00000040 000080bf 000000c0 04000000 14010000"
        "06000000 07000000 08000000 01020304"
    )


def test_a_step_may_do_nothing_but_release() -> None:
    frame = step_frame(rows=0, tokens=0, openings=())
    step, hidden = unpack(frame, step_payload.pack_step(Step(9, (), (), (1, 2)), None), None)
    assert (step, hidden) == (Step(9, (), (), (1, 2)), None)
    with pytest.raises(ProtocolViolation, match="0 rows and 0 tokens"):
        unpack(step_frame(rows=0, tokens=0, openings=(), released=()), b"", None)


def test_cut_short_at_every_offset() -> None:
    whole = step_payload.pack_step(STEP, HIDDEN)
    for length in range(len(whole)):
        with pytest.raises(ProtocolViolation):
            unpack(step_frame(), whole[:length])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": 0}, "a step of 0 rows"),
        ({"rows": -1}, "a step of -1 rows"),
        ({"rows": step_payload.MAX_ROWS + 1}, "a step of 1025 rows"),
        ({"tokens": 0}, "0 tokens"),
        ({"tokens": step_payload.MAX_STEP_TOKENS + 1}, "8193 tokens"),
        ({"tokens": 2}, "do not add up"),
        ({"released": (-1,)}, "impossible sequences"),
        ({"released": (2**32,)}, "impossible sequences"),
        ({"released": (1,) * (step_payload.MAX_RELEASED + 1)}, "impossible sequences"),
    ],
)
def test_a_header_that_lies(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ProtocolViolation, match=said):
        unpack(step_frame(**changes), step_payload.pack_step(STEP, HIDDEN))


@pytest.mark.parametrize(
    "row",
    [
        Row(1, 0, 0, 0),
        Row(1, 0, 1, 2),
        Row(1, 8, 1, 0),
        Row(1, 2**32 - 1, 1, 0),
        Row(1, 0, 1, 0, Sampling(-1.0)),
        Row(1, 0, 1, 0, Sampling(float("nan"))),
        Row(1, 0, 1, 0, Sampling(float("inf"))),
        Row(1, 0, 1, 0, Sampling(1.0, 0.0)),
        Row(1, 0, 1, 0, Sampling(1.0, float("nan"))),
        Row(1, 0, 1, 0, Sampling(1.0, 1.5)),
        Row(1, 0, 1, 0, Sampling(min_p=1.5)),
        Row(1, 0, 1, 0, Sampling(repetition_penalty=0.0)),
        Row(1, 0, 1, 0, Sampling(repetition_penalty=float("nan"))),
        Row(1, 0, 1, 0, Sampling(presence_penalty=1e9)),
        Row(1, 0, 1, 0, Sampling(frequency_penalty=float("-inf"))),
        Row(1, 0, 1, 1, Sampling(logprobs=21)),
        Row(1, 0, 1, 1, Sampling(logprobs=-2)),
        Row(1, 0, 1, 0, fork_from=-2),
        Row(1, 0, 1, 0, fork_from=2**32),
        Row(1, 0, 1, 0, mask=bytes(16)),
        Row(1, 0, 1, 1, mask=bytes(12)),
    ],
)
def test_rows_that_native_code_must_not_see(row: Row) -> None:
    frame = step_frame(rows=1, tokens=1, released=(), openings=())
    with pytest.raises(ProtocolViolation):
        unpack(frame, payload_of((row,), (5,)), None)


@pytest.mark.parametrize(
    "openings",
    [
        (Opening(5, 1),),
        (Opening(4, 1), Opening(4, 1)),
        (Opening(4, -1),),
        (Opening(4, 1, ((100, 1.0),)),),
        (Opening(4, 1, ((-1, 1.0),)),),
        (Opening(4, 1, ((7, 1.0), (7, 2.0))),),
    ],
)
def test_openings_that_cannot_be(openings: tuple[Opening, ...]) -> None:
    with pytest.raises(ProtocolViolation, match=r"opens|bias|prompt"):
        unpack(step_frame(openings=openings), step_payload.pack_step(STEP, HIDDEN))


@pytest.mark.parametrize("token", [-1, 100, 2**31 - 1])
def test_tokens_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(ProtocolViolation, match="outside 0..99"):
        unpack(
            step_frame(rows=1, tokens=1, openings=()),
            payload_of((Row(1, 0, 1, 0),), (token,)),
            None,
        )


def test_a_sequence_has_one_row() -> None:
    rows = (Row(1, 0, 1, 0), Row(1, 1, 1, 0))
    with pytest.raises(ProtocolViolation, match="two rows"):
        unpack(step_frame(tokens=2, openings=()), payload_of(rows, (5, 6)), None)


def test_an_activation_where_none_belongs() -> None:
    with pytest.raises(ProtocolViolation, match="on the way to the first stage"):
        unpack(step_frame(), step_payload.pack_step(STEP, HIDDEN), None)


def test_an_activation_of_another_width() -> None:
    with pytest.raises(ProtocolViolation, match="3 x 5 f32"):
        unpack(step_frame(), step_payload.pack_step(STEP, HIDDEN), 5)


def sampled_frame(count: int, alternatives: int = 0) -> ring.SampledFrame:
    return ring.SampledFrame(NO_EPOCH, PlanId("p"), 9, count, alternatives, ())


def unpack_drawn(frame: ring.SampledFrame, payload: bytes, wanted: tuple[int, ...]) -> Any:
    return step_payload.unpack_sampled(frame, memoryview(payload), wanted, 100)


def test_drawn_tokens_come_back() -> None:
    drawn = (Sampled(5, -0.5), Sampled(99, -2.0, ((7, -0.25), (99, -2.0))), Sampled(1, 0.0))
    payload = step_payload.pack_sampled(drawn)
    assert len(payload) == 40
    assert unpack_drawn(sampled_frame(3, 2), payload, (0, 2, 0)) == drawn


def test_an_impossible_alternative_is_finite_on_the_wire() -> None:
    drawn = (Sampled(5, -0.5, ((5, -0.5), (7, float("-inf")))),)
    (back,) = unpack_drawn(sampled_frame(1, 2), step_payload.pack_sampled(drawn), (2,))
    assert back.alternatives[1] == (7, step_payload.LEAST_LOGPROB)


def test_nothing_drawn_is_nothing() -> None:
    assert unpack_drawn(sampled_frame(0), step_payload.pack_sampled(()), ()) == ()


@pytest.mark.parametrize(
    ("frame", "drawn"),
    [
        (sampled_frame(1), ()),
        (sampled_frame(-1), (Sampled(5, -0.5),)),
        (sampled_frame(2), (Sampled(5, -0.5),)),
        (sampled_frame(1, 1), (Sampled(5, -0.5),)),
        (sampled_frame(1), (Sampled(5, -0.5), Sampled(6, -0.5))),
        (sampled_frame(1), (Sampled(-1, -0.5),)),
        (sampled_frame(1), (Sampled(100, -0.5),)),
        (sampled_frame(1), (Sampled(5, float("nan")),)),
        (sampled_frame(1), (Sampled(5, float("inf")),)),
    ],
)
def test_drawn_tokens_that_cannot_be(frame: ring.SampledFrame, drawn: tuple[Sampled, ...]) -> None:
    with pytest.raises(ProtocolViolation):
        unpack_drawn(frame, step_payload.pack_sampled(drawn), (0,))


TREE_ROWS = (
    Row(3, 2, 4, 4, Sampling(0.0), parents=(-1, 0, 0, 2), kept=(3, 5)),
    Row(4, 6, 1, 1, Sampling(0.0), mask=bytes(range(16)), kept=(6,)),
    Row(5, 0, 2, 2, Sampling(0.0), parents=(-1, 0)),
)
TREE_STEP = Step(9, TREE_ROWS, (1, 2, 3, 4, 5, 6, 7))


def tree_frame() -> ring.StepFrame:
    return step_frame(rows=3, tokens=7, released=(), openings=())


def test_trees_and_kept_slots_come_back_whole() -> None:
    step, _ = unpack(tree_frame(), step_payload.pack_step(TREE_STEP, None), None)
    assert step == TREE_STEP


def test_a_tree_has_the_literal_bytes() -> None:
    row = Row(1, 2, 3, 3, Sampling(0.0), parents=(-1, 0, 0), kept=(4,))
    data = payload_of((row,), (6, 7, 8))
    assert data[60:64] == bytes.fromhex("ff000101")
    assert data[64 + 12 :] == bytes.fromhex("ffff 0000 0000 04000000")


@pytest.mark.parametrize(
    "row",
    [
        Row(1, 2, 3, 3, parents=(-1, 1, 0)),
        Row(1, 2, 3, 3, parents=(0, 0, 0)),
        Row(1, 2, 3, 3, parents=(-1, -1, 0)),
        Row(1, 2, 3, 2, parents=(-1, 0, 1)),
        Row(1, 2, 3, 3, kept=(5, 4)),
        Row(1, 2, 3, 3, kept=(4, 4)),
        Row(1, 2, 3, 3, kept=(8,)),
        Row(1, 0, 3, 3, kept=(4,)),
        Row(1, 2, 3, 3, kept=(0,)),
        Row(1, 2, 3, 3, fork_from=7, kept=(4,)),
    ],
)
def test_impossible_trees_and_slots_are_refused(row: Row) -> None:
    frame = step_frame(rows=1, tokens=3, released=(), openings=())
    with pytest.raises(ProtocolViolation):
        unpack(frame, payload_of((row,), (6, 7, 8)), None)


@pytest.mark.parametrize("cut", [1, 4, 10, 20])
def test_a_step_shorter_than_its_trees_is_refused(cut: int) -> None:
    data = step_payload.pack_step(TREE_STEP, None)
    with pytest.raises(ProtocolViolation):
        unpack(tree_frame(), data[:-cut], None)
