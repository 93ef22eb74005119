"""A trimmed head gives the columns of the whole one, bit for bit, however its weights are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from meshinfer.core.step import Row, Step
from meshinfer.engine.head_trim import USUAL_TOKENS, kept_tokens, trimmed
from meshinfer.engine.paged import PagedStage, StageOptions
from meshinfer.errors import StageFailed
from tests.weights.tiny import tiny_model

SIZE, HIDDEN, GROUPS = 24, 16, 2
CHOSEN = np.array([0, 1, 5, 7, 8, 20, 23], np.int64)
RANDOM = np.random.default_rng(5)


def floats(*shape: int) -> NDArray[np.float32]:
    return RANDOM.normal(0, 1, shape).astype(np.float32)


def packed(kind: ov.Type, *shape: int) -> Any:
    """A constant of 4-bit numbers."""
    data = RANDOM.integers(0, 256, -(-int(np.prod(shape)) // 2), np.uint8)
    return ops.constant(ov.Tensor(data, ov.Shape(shape), kind), shared_memory=False)


def half(*shape: int) -> Any:
    return ops.constant(floats(*shape).astype(np.float16))


def plain() -> Any:
    return ops.constant(floats(SIZE, HIDDEN))


def compressed_half() -> Any:
    return ops.convert(half(SIZE, HIDDEN), "f32")


def bytes_with_zero_points() -> Any:
    codes = ops.constant(RANDOM.integers(0, 256, (SIZE, HIDDEN), np.uint8))
    zero = ops.constant(RANDOM.integers(0, 256, (SIZE, 1), np.uint8))
    centred = ops.subtract(ops.convert(codes, "f16"), ops.convert(zero, "f16"))
    return ops.convert(ops.multiply(centred, half(SIZE, 1)), "f32")


def bytes_with_one_zero_point() -> Any:
    codes = ops.constant(RANDOM.integers(-128, 128, (SIZE, HIDDEN), np.int8))
    centred = ops.subtract(ops.convert(codes, "f32"), ops.constant(np.float32(3)))
    return ops.multiply(centred, ops.constant(floats(SIZE, 1)))


def grouped(kind: ov.Type) -> Callable[[], Any]:
    def build() -> Any:
        codes = packed(kind, SIZE, GROUPS, HIDDEN // GROUPS)
        zero = ops.convert(packed(kind, SIZE, GROUPS, 1), "f16")
        centred = ops.subtract(ops.convert(codes, "f16"), zero)
        scaled = ops.multiply(centred, half(SIZE, GROUPS, 1))
        shape = ops.constant(np.array([SIZE, HIDDEN], np.int64))
        return ops.convert(ops.reshape(scaled, shape, False), "f32")

    return build


def turned() -> Any:
    order = ops.constant(np.array([1, 0], np.int64))
    return ops.transpose(ops.constant(floats(HIDDEN, SIZE)), order)


def upright() -> Any:
    return ops.constant(floats(HIDDEN, SIZE))


def upright_in_odd_groups() -> Any:
    codes = packed(ov.Type.u4, GROUPS, HIDDEN // GROUPS, SIZE)
    scaled = ops.multiply(ops.convert(codes, "f16"), half(GROUPS, 1, SIZE))
    shape = ops.constant(np.array([HIDDEN, SIZE], np.int64))
    return ops.convert(ops.reshape(scaled, shape, False), "f32")


def head(weights: Any, transposed: bool, behind: Callable[[Any], Any] = lambda made: made) -> Any:
    hidden = ops.parameter([-1, -1, HIDDEN], np.float32)
    result = ops.result(behind(ops.matmul(hidden, weights, False, transposed)))
    return ov.Model([result], [hidden], "head")


def logits(model: Any, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
    options = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    # Kept as array: the request dies with this function.
    return np.array(ov.Core().compile_model(model, "CPU", options)([hidden])[0])


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("weights", "transposed"),
    [
        (plain, True),
        (compressed_half, True),
        (bytes_with_zero_points, True),
        (bytes_with_one_zero_point, True),
        (grouped(ov.Type.u4), True),
        (grouped(ov.Type.i4), True),
        (turned, True),
        (upright, False),
        (upright_in_odd_groups, False),
    ],
)
def test_the_columns_of_the_whole(weights: Callable[[], Any], transposed: bool) -> None:
    model = head(weights(), transposed)
    hidden = floats(1, 3, HIDDEN)
    whole = logits(model, hidden)
    assert (logits(trimmed(model, CHOSEN), hidden) == whole[..., CHOSEN]).all()
    assert model.outputs[0].get_partial_shape()[-1] == SIZE  # it stays as it was


def biased(made: Any) -> Any:
    return ops.add(made, ops.convert(half(SIZE), "f32"))


def capped(made: Any) -> Any:
    cap = ops.constant(np.float32(30))
    return ops.multiply(cap, ops.tanh(ops.divide(made, cap)))


def scaled_one_by_one(made: Any) -> Any:
    return ops.multiply(ops.constant(floats(1, 1, SIZE)), made)


@pytest.mark.openvino
@pytest.mark.parametrize("behind", [biased, capped, scaled_one_by_one])
def test_what_is_applied_to_logits_is_cut_too(behind: Callable[[Any], Any]) -> None:
    model = head(plain(), True, behind)
    hidden = floats(1, 2, HIDDEN)
    whole = logits(model, hidden)
    assert (logits(trimmed(model, CHOSEN), hidden) == whole[..., CHOSEN]).all()


def in_another_order(made: Any) -> Any:
    return ops.transpose(made, ops.constant(np.array([1, 0, 2], np.int64)))


def joined() -> Any:
    return ops.concat([ops.constant(floats(SIZE // 2, HIDDEN))] * 2, 0)


def of_other_axes() -> Any:
    shape = ops.constant(np.array([SIZE, HIDDEN], np.int64))
    return ops.reshape(ops.constant(floats(SIZE // 2, 2 * HIDDEN)), shape, False)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: head(plain(), True, in_another_order), "logits come from a Transpose"),
        (lambda: head(joined(), True), "weights come from a Concat"),
        (lambda: head(of_other_axes(), True), "weights change"),
        (
            lambda: head(plain(), True, lambda made: ops.softmax(made, 2)),
            "logits come from a Softmax",
        ),
    ],
)
def test_what_is_not_understood_is_refused(model: Callable[[], Any], reason: str) -> None:
    with pytest.raises(StageFailed, match=rf"cannot be trimmed \(.*{reason}"):
        trimmed(model(), CHOSEN)


@pytest.mark.parametrize("tokens", [[], [-1, 2], [3, SIZE]])
def test_tokens_that_are_none(tokens: list[int]) -> None:
    with pytest.raises(StageFailed, match=r"cannot be trimmed \(tokens outside 0\.\.23"):
        trimmed(head(plain(), True), np.array(tokens, np.int64))


def ran(model: Any, tokens: tuple[int, ...]) -> NDArray[np.float32]:
    stage = PagedStage.load(model, StageOptions(deterministic=True, cache_tokens=256))
    rows = (Row(1, 0, len(tokens), len(tokens)),)
    return np.array(stage.forward(Step(0, rows, tokens), None))


@pytest.mark.openvino
@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_model_keeps_its_embedding(tied: bool) -> None:
    model = tiny_model(layers=1, tied=tied)
    chosen = np.array([*range(0, 256, 3)], np.int64)
    tokens = tuple(range(2, 80, 7))
    assert (ran(trimmed(model, chosen), tokens) == ran(model, tokens)[:, chosen]).all()
    tables = [one for one in trimmed(model, chosen).get_ops() if one.get_type_name() == "Constant"]
    assert [256, 64] in [list(one.get_output_shape(0)) for one in tables]


@pytest.mark.openvino
@pytest.mark.slow
def test_a_real_model(smollm2: Path) -> None:
    model = ov.Core().read_model(smollm2 / "openvino_model.xml")
    chosen = kept_tokens(49152, [49151], [40000])
    tokens = tuple((37 * index) % 4000 + 100 for index in range(12))
    assert np.abs(ran(trimmed(model, chosen), tokens) - ran(model, tokens)[:, chosen]).max() == 0.0


def test_the_usual_tokens_and_those_that_are_named() -> None:
    chosen = kept_tokens(50000, [49999, 5, 49000], [49000, 50000, -1])
    assert chosen[:USUAL_TOKENS].tolist() == list(range(USUAL_TOKENS))
    assert chosen[USUAL_TOKENS:].tolist() == [49000, 49999]
    assert kept_tokens(10, [9]).tolist() == list(range(10))
