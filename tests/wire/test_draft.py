"""Texts and guesses travel whole, with the literal bytes; what cannot be is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.draft import DraftNode
from meshinfer.core.ids import Epoch, PlanId
from meshinfer.core.request import GREEDY, Sampling
from meshinfer.errors import ProtocolViolation
from meshinfer.wire import draft
from meshinfer.wire.draft import DraftNodes, DraftText

EPOCH, PLAN = Epoch(3, "here"), PlanId("plan")
TEXT = DraftText(EPOCH, PLAN, sequence=7, position=2, count=3, depth=5, least=0.25, sampling=GREEDY)
NEWS = DraftNodes(EPOCH, PLAN, count=2, rows=1, compute_us=31000)
NODES = [
    (7, DraftNode(number=1, parent=None, position=5, token=9, chance=0.5)),
    (2**32 - 1, DraftNode(number=258, parent=1, position=6, token=0, chance=1.0)),
]
BYTES = bytes.fromhex(
    "07000000 01000000 ffffffffffffffff 05000000 09000000 0000003f"
    "ffffffff 02010000 0100000000000000 06000000 00000000 0000803f"
)


def test_tokens_come_back_and_have_the_literal_bytes() -> None:
    payload = draft.pack_tokens([1, 2, 258])
    assert payload == bytes.fromhex("01000000 02000000 02010000")
    assert draft.unpack_tokens(memoryview(payload), TEXT, 259) == [1, 2, 258]
    with pytest.raises(ProtocolViolation, match="outside"):
        draft.unpack_tokens(memoryview(payload), TEXT, 258)
    with pytest.raises(ProtocolViolation, match="outside"):
        draft.unpack_tokens(memoryview(draft.pack_tokens([1, -1, 2])), TEXT, 258)


@pytest.mark.parametrize("length", [0, 4, 11, 13, 16])
def test_tokens_cut_short_or_lengthened(length: int) -> None:
    with pytest.raises(ProtocolViolation, match="announced size"):
        draft.unpack_tokens(memoryview(bytes(length)), TEXT, 10)


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0},
        {"count": -1},
        {"count": draft.MAX_TEXT_TOKENS + 1},
        {"sequence": -1},
        {"sequence": 2**32},
        {"position": -1},
        {"position": 2**32},
        {"depth": -1},
        {"depth": 2**16},
        {"least": -0.1},
        {"least": float("nan")},
        {"sampling": Sampling(temperature=-0.1)},
        {"sampling": Sampling(temperature=math.nan)},
        {"sampling": Sampling(temperature=math.inf)},
        {"sampling": Sampling(top_p=0.0)},
        {"sampling": Sampling(min_p=1.1)},
        {"sampling": Sampling(top_k=-1)},
        {"sampling": Sampling(seed=-1)},
        {"sampling": Sampling(seed=2**64)},
    ],
)
def test_a_text_that_cannot_be(change: dict[str, Any]) -> None:
    text = replace(TEXT, **change)
    payload = bytes(4 * max(0, text.count))
    with pytest.raises(ProtocolViolation):
        draft.unpack_tokens(memoryview(payload), text, 10)


def test_nodes_come_back_and_have_the_literal_bytes() -> None:
    assert draft.pack_nodes(NODES) == BYTES
    assert draft.unpack_nodes(memoryview(BYTES), NEWS, 10) == NODES
    assert draft.pack_nodes([]) == b""
    assert draft.unpack_nodes(memoryview(b""), replace(NEWS, count=0), 10) == []


def test_nodes_cut_short_or_lengthened() -> None:
    for payload in (*(BYTES[:length] for length in range(len(BYTES))), BYTES + bytes(1)):
        with pytest.raises(ProtocolViolation, match="announced size"):
            draft.unpack_nodes(memoryview(payload), NEWS, 10)


@pytest.mark.parametrize("count", [-1, 0, 1, 3, draft.MAX_NODES + 1])
def test_a_count_that_lies(count: int) -> None:
    with pytest.raises(ProtocolViolation, match="announced size"):
        draft.unpack_nodes(memoryview(BYTES), replace(NEWS, count=count), 10)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token": 10}, "outside"),
        ({"token": -1}, "outside"),
        ({"chance": 1.01}, "chance"),
        ({"chance": -0.01}, "chance"),
        ({"chance": math.nan}, "chance"),
        ({"parent": -2}, "parent"),
        ({"parent": 258}, "parent"),
        ({"parent": 2**40}, "parent"),
    ],
)
def test_a_node_that_cannot_be(change: dict[str, Any], reason: str) -> None:
    payload = draft.pack_nodes([NODES[0], (7, replace(NODES[1][1], **change))])
    with pytest.raises(ProtocolViolation, match=reason):
        draft.unpack_nodes(memoryview(payload), NEWS, 10)


@given(st.binary(min_size=28 * 2, max_size=28 * 2))
def test_any_bytes_are_nodes_or_refused(payload: bytes) -> None:
    try:
        nodes = draft.unpack_nodes(memoryview(payload), NEWS, 2**31)
    except ProtocolViolation:
        return
    assert draft.unpack_nodes(memoryview(draft.pack_nodes(nodes)), NEWS, 2**31) == nodes
