"""The plan conversation: the largest honest messages fit their limits."""

from __future__ import annotations

import zlib

import pytest

from meshinfer.core.fleet import Address
from meshinfer.core.ids import Digest, Epoch, ModelId, NodeId, PlanId
from meshinfer.core.model import (
    PIECE_BYTES,
    ModelShape,
    StageManifest,
    StoredFile,
    Unit,
    UnitKind,
    UnitRange,
)
from meshinfer.core.plan import Pipeline, Plan, PlanKind, StagePlan
from meshinfer.core.seal import Seal
from meshinfer.errors import ProtocolViolation
from meshinfer.wire import commit, registry

EPOCH = Epoch(2**40, NodeId("n" * 52))
PLAN = PlanId("0123456789abcdef")
ADDRESSES = (Address("fe80::1234:5678:9abc:def0%Ethernet 2", 47000),) * 4


SEAL = Seal(b"c" * 700, b"s" * 64)


def stage(index: int) -> StagePlan:
    return StagePlan(
        NodeId("n" * 52), "GPU.0", UnitRange(index, index + 1), 0, 1, 10**10, 10**9, ADDRESSES
    )


def test_a_plan_of_32_pcs_for_a_model_of_126_layers_fits() -> None:
    units = tuple(Unit(UnitKind.FEED_FORWARD, 2**20, 2**40, 2**30, 2**30) for _ in range(254))
    shape = ModelShape(ModelId("m" * 64), Digest("a" * 64), units, 126, 16384, 2**18, 2**17)
    pipeline = Pipeline(tuple(stage(index) for index in range(32)))
    plan = Plan(
        PLAN, EPOCH, ModelId("m" * 64), PlanKind.HYBRID, "w" * 400, "bf16", 4096, 9999, (pipeline,)
    )
    message = commit.Prepare(plan, shape)
    assert registry.unpack(registry.pack(message), registry.welcome("mesh"))[0] == message


def test_a_stage_of_20_gb_can_be_loaded() -> None:
    """With every weight of an expert a segment, as mixtures of experts have them."""
    segments = (PIECE_BYTES,) * 10_000 + (PIECE_BYTES // 2,) * 20_000
    file = StoredFile("openvino_model.bin", segments, bytes(32) * 30_000)
    manifest = StageManifest(
        ModelId("m"), Digest("c" * 64), UnitRange(0, 9), "2026.4.1", (file,), Digest("d" * 64)
    )
    message = commit.Load(EPOCH, PLAN, (manifest,), (SEAL,), (NodeId("n" * 52),) * 32, (bytes(9),))
    assert registry.unpack(registry.pack(message), registry.welcome("mesh"))[0] == message


def test_a_range_that_holds_nothing_is_refused_by_the_receiver() -> None:
    message = commit.Load(EPOCH, PLAN, (), (), (), ())
    packed = registry.pack(message)
    assert registry.unpack(packed, registry.welcome("mesh"))[0] == message
    whole = stage(3)
    object.__setattr__(whole.units, "end", 3)
    plan = Plan(PLAN, EPOCH, ModelId("m"), PlanKind.SINGLE, "", "f32", 1, 1, (Pipeline((whole,)),))
    shape = ModelShape(ModelId("m"), Digest("a"), (), 1, 1, 1, 1)
    with pytest.raises(ProtocolViolation, match="empty or negative range"):
        registry.unpack(registry.pack(commit.Prepare(plan, shape)), registry.welcome("mesh"))


def test_an_unknown_phase_is_refused() -> None:
    report = commit.StageReport(PLAN, 0, 0, commit.StagePhase.READY, 1.0)
    header = bytearray(registry.pack(report))
    at = header.index(b"ready")
    header[at : at + 5] = b"abcde"
    header[16:20] = zlib.crc32(header[20:]).to_bytes(4, "little")
    with pytest.raises(ProtocolViolation, match="unknown StagePhase"):
        registry.unpack(header, registry.welcome("mesh"))
