"""What every Stage must do, run against the toy and against OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.paged import PagedStage, StageOptions
from meshinfer.engine.stage import Stage
from meshinfer.engine.toy import ToyModel, ToyStage
from meshinfer.errors import StageFailed
from meshinfer.weights.cut import cut
from tests.weights.tiny import tiny_model

LAYERS = 2
UNITS = 2 * LAYERS + 2
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 97, 93, 23, 84, 62, 64, 33, 83, 27, 95, 0, 28, 84, 19, 71]
OTHER = [69, 39, 93, 75, 10, 58, 20, 97, 49, 44, 59, 23, 7, 81, 64, 6, 28, 62, 8, 99, 86, 28, 3, 48]


@dataclass(frozen=True)
class Kind:
    """How to make stages of one model."""

    make: Callable[[UnitRange, int], Stage]
    tolerance: float  # of rows that are computed in other company: another matrix shape


def toy(units: UnitRange, cache_tokens: int) -> Stage:
    return ToyStage(units, ToyModel(layers=LAYERS), cache_tokens)


def paged(xml: Path, units: UnitRange, cache_tokens: int) -> Stage:
    options = StageOptions(threads=1, cache_tokens=cache_tokens, deterministic=True)
    return PagedStage.load(cut(xml, units) if len(units) < UNITS else xml, options)


@pytest.fixture(scope="session")
def tiny_xml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import openvino as ov

    xml = tmp_path_factory.mktemp("tiny") / "openvino_model.xml"
    ov.save_model(tiny_model(layers=LAYERS), xml, compress_to_fp16=False)
    return xml


class Bench:
    """Stages of one kind, closed at the end of a test."""

    def __init__(self, kind: Kind) -> None:
        self.tolerance = kind.tolerance
        self._make = kind.make
        self._stages: list[Stage] = []

    def stage(self, first: int = 0, end: int = UNITS, cache_tokens: int = 512) -> Stage:
        self._stages.append(self._make(UnitRange(first, end), cache_tokens))
        return self._stages[-1]

    def close(self) -> None:
        for stage in self._stages:
            stage.close()


@pytest.fixture(
    params=["toy", pytest.param("paged", marks=[pytest.mark.openvino, pytest.mark.slow])]
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from benches(request, paged)


def benches(
    request: pytest.FixtureRequest, load: Callable[[Path, UnitRange, int], Stage]
) -> Iterator[Bench]:
    """The bench of a fixture's parameter: the toy's, or that of stages as `load` makes them."""
    if request.param == "toy":
        kind = Kind(toy, 0.0)
    else:
        kind = Kind(partial(load, request.getfixturevalue("tiny_xml")), 2e-5)
    made = Bench(kind)
    yield made
    made.close()


@dataclass(frozen=True)
class Part:
    """One row of a step and its tokens."""

    sequence: int
    position: int
    tokens: Sequence[int]
    logits: int = 1
    fork_from: int | None = None


def step(*parts: Part, released: tuple[int, ...] = ()) -> Step:
    rows = tuple(
        Row(part.sequence, part.position, len(part.tokens), part.logits, fork_from=part.fork_from)
        for part in parts
    )
    return Step(0, rows, tuple(token for part in parts for token in part.tokens), released)


def run(stage: Stage, *parts: Part, released: tuple[int, ...] = ()) -> NDArray[Any]:
    return np.array(stage.forward(step(*parts, released=released), None))


def alone(bench: Bench, tokens: Sequence[int], logits: int = 1) -> NDArray[Any]:
    """The last rows of a text that is computed in one piece on a fresh stage."""
    return run(bench.stage(), Part(1, 0, tokens, logits))


def same(bench: Bench, actual: NDArray[Any], expected: NDArray[Any]) -> None:
    assert actual.shape == expected.shape
    scale = float(np.abs(expected).max())
    assert float(np.abs(actual - expected).max()) <= bench.tolerance * scale


def test_the_shape_says_what_goes_in_and_out(bench: Bench) -> None:
    shape = bench.stage(cache_tokens=100).shape
    assert shape.first
    assert shape.last
    assert shape.precision == "f32"
    assert (shape.input_width, shape.output_width) == (0, 0)
    assert shape.block_size > 0
    assert shape.cache_tokens % shape.block_size == 0
    logits = alone(bench, TEXT, 3)
    assert logits.shape == (3, shape.vocabulary_size)
    assert logits.dtype == np.float32


def test_decoding_token_by_token_equals_one_prefill(bench: Bench) -> None:
    expected = alone(bench, TEXT, len(TEXT))
    stage = bench.stage()
    for position, token in enumerate(TEXT):
        logits = run(stage, Part(1, position, [token]))
        same(bench, logits, expected[position : position + 1])
        assert stage.cached(1) == position + 1


def test_a_prompt_in_chunks_equals_one_prefill(bench: Bench) -> None:
    expected = alone(bench, TEXT, 3)
    stage = bench.stage()
    assert run(stage, Part(1, 0, TEXT[:7], 0)).shape == (0, stage.shape.vocabulary_size)
    assert run(stage, Part(1, 7, TEXT[7:20], 0)).shape == (0, stage.shape.vocabulary_size)
    same(bench, run(stage, Part(1, 20, TEXT[20:], 3)), expected)


def test_sequences_of_different_lengths_do_not_disturb_each_other(bench: Bench) -> None:
    stage = bench.stage()
    texts = {1: TEXT[:20], 2: OTHER[:3], 3: OTHER[5:18]}
    prefill = run(stage, *(Part(key, 0, text) for key, text in texts.items()))
    rows = [prefill, run(stage, *(Part(key, len(text), [key]) for key, text in texts.items()))]
    for place, (key, text) in enumerate(texts.items()):
        expected = alone(bench, [*text, key], 2)
        same(bench, np.stack([found[place] for found in rows]), expected)


def test_prefill_and_decode_share_a_step(bench: Bench) -> None:
    stage = bench.stage()
    run(stage, Part(1, 0, TEXT[:10]))
    mixed = run(stage, Part(2, 0, OTHER[:8], 0), Part(1, 10, TEXT[10:11]), Part(3, 0, OTHER, 2))
    same(bench, mixed, np.concatenate([alone(bench, TEXT[:11]), alone(bench, OTHER, 2)]))
    same(bench, run(stage, Part(2, 8, OTHER[8:9])), alone(bench, OTHER[:9]))


def test_a_rewind_leaves_no_trace(bench: Bench) -> None:
    stage = bench.stage()
    run(stage, Part(1, 0, TEXT[:6]))
    clean = run(stage, Part(1, 6, TEXT[6:9], 3))
    run(stage, Part(1, 3, OTHER[:20], 1))
    run(stage, Part(1, 3, TEXT[3:6], 0))
    assert stage.cached(1) == 6
    np.testing.assert_array_equal(run(stage, Part(1, 6, TEXT[6:9], 3)), clean)


def test_a_wrong_cache_shows(bench: Bench) -> None:
    """The suite could not fail if the last token alone decided."""
    expected = alone(bench, TEXT)
    stage = bench.stage()
    run(stage, Part(1, 0, [*OTHER[:1], *TEXT[1:-1]]))
    wrong = run(stage, Part(1, len(TEXT) - 1, TEXT[-1:]))
    assert float(np.abs(wrong - expected).max()) > 1e-3 * float(np.abs(expected).max())


@pytest.mark.parametrize("prefix", [0, 5, 16, 20])
def test_a_fork_continues_the_prefix_and_leaves_its_source_alone(bench: Bench, prefix: int) -> None:
    stage = bench.stage()
    run(stage, Part(1, 0, TEXT[:20]))
    both = run(
        stage,
        Part(2, prefix, OTHER[:4], fork_from=1),
        Part(1, 20, TEXT[20:22]),
    )
    same(bench, both[:1], alone(bench, [*TEXT[:prefix], *OTHER[:4]]))
    same(bench, both[1:], alone(bench, TEXT[:22]))
    more = run(stage, Part(1, 22, TEXT[22:23]), Part(2, prefix + 4, OTHER[4:5]))
    same(bench, more[:1], alone(bench, TEXT[:23]))
    same(bench, more[1:], alone(bench, [*TEXT[:prefix], *OTHER[:5]]))


def test_a_fork_outlives_its_source(bench: Bench) -> None:
    stage = bench.stage()
    run(stage, Part(1, 0, TEXT[:20]))
    run(stage, Part(2, 18, OTHER[:1], fork_from=1))
    run(stage, Part(3, 0, OTHER), released=(1,))
    assert stage.cached(1) == 0
    same(bench, run(stage, Part(2, 19, OTHER[1:2])), alone(bench, [*TEXT[:18], *OTHER[:2]]))


def test_a_full_cache_refuses_the_step_and_keeps_the_others(bench: Bench) -> None:
    stage = bench.stage(cache_tokens=64)
    run(stage, Part(1, 0, TEXT[:20]))
    with pytest.raises(StageFailed, match="cache is full"):
        stage.forward(step(Part(1, 20, TEXT[20:22]), Part(2, 0, [1] * 60)), None)
    assert (stage.cached(1), stage.cached(2)) == (20, 0)
    same(bench, run(stage, Part(1, 20, TEXT[20:22])), alone(bench, TEXT[:22]))


def test_releasing_makes_room_in_the_same_step(bench: Bench) -> None:
    stage = bench.stage(cache_tokens=64)
    run(stage, Part(1, 0, [5] * 60))
    long = [*TEXT, *OTHER]
    same(bench, run(stage, Part(2, 0, long), released=(1, 99)), alone(bench, long))
    assert (stage.cached(1), stage.cached(2)) == (0, len(long))


def test_a_row_beyond_the_cache_is_refused(bench: Bench) -> None:
    stage = bench.stage()
    run(stage, Part(1, 0, TEXT[:4]))
    with pytest.raises(StageFailed, match="does not hold"):
        stage.forward(step(Part(1, 5, [1])), None)
    with pytest.raises(StageFailed, match="does not hold"):
        stage.forward(step(Part(2, 1, [1])), None)
    assert stage.cached(1) == 4


@pytest.mark.parametrize("tokens", [[-1], [10**6]])
def test_ids_outside_the_vocabulary_are_refused(bench: Bench, tokens: list[int]) -> None:
    stage = bench.stage()
    with pytest.raises(StageFailed, match="vocabulary"):
        stage.forward(step(Part(1, 0, tokens)), None)
    assert stage.cached(1) == 0


def test_an_empty_step_only_releases(bench: Bench) -> None:
    stage = bench.stage()
    run(stage, Part(1, 0, TEXT))
    assert run(stage, released=(1,)).shape == (0, stage.shape.vocabulary_size)
    assert stage.cached(1) == 0


@pytest.mark.parametrize("cut", range(1, UNITS))
def test_a_chain_of_two_stages_equals_one_stage_bit_for_bit(bench: Bench, cut: int) -> None:
    whole, head, tail = bench.stage(), bench.stage(0, cut), bench.stage(cut, UNITS)
    steps = [
        step(Part(1, 0, TEXT[:9], 0), Part(2, 0, OTHER, 1)),
        step(Part(1, 9, TEXT[9:20], 2), Part(2, len(OTHER), [7])),
        step(Part(1, 17, TEXT[17:18]), Part(3, 12, [8], fork_from=2), Part(2, 25, [9])),
        step(Part(1, 18, TEXT[18:19]), Part(3, 13, [8]), released=(2,)),
    ]
    for one in steps:
        expected = np.array(whole.forward(one, None))
        # Through bytes that cannot be written, as a frame's payload is.
        sent = np.array(head.forward(one, None))
        received = np.frombuffer(sent.tobytes(), sent.dtype).reshape(sent.shape)
        np.testing.assert_array_equal(tail.forward(one, received), expected)
    assert head.cached(3) == tail.cached(3) == 14
    assert head.cached(2) == tail.cached(2) == 0


def test_activations_of_another_shape_are_refused(bench: Bench) -> None:
    tail = bench.stage(2, UNITS)
    hidden = tail.shape.input_width
    for wrong in (None, np.zeros((2, hidden), np.float32), np.zeros((1, 3), np.float32)):
        with pytest.raises(StageFailed, match=r"[Aa]ctivations"):
            tail.forward(step(Part(1, 0, [1])), wrong)
    assert tail.cached(1) == 0


def test_close_is_idempotent_and_final(bench: Bench) -> None:
    stage = bench.stage()
    stage.close()
    stage.close()
    with pytest.raises(StageFailed, match="closed"):
        stage.forward(step(Part(1, 0, [1])), None)
