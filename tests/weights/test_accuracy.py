from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from meshinfer.weights.accuracy import Accuracy, Comparison, compare, normalised, stored_text

Array = NDArray[Any]


def _heads(own: Array, new: Array, rows: int) -> Iterator[tuple[Array, Array]]:
    for first in range(0, len(own), rows):
        yield own[first : first + rows], new[first : first + rows]


def _case(seed: int, shift: float) -> tuple[Array, Array, Array, Array]:
    random = np.random.default_rng(seed)
    hidden = random.standard_normal((9, 16)).astype(np.float32)
    head = random.standard_normal((101, 16)).astype(np.float32)
    other = head + shift * random.standard_normal(head.shape).astype(np.float32)
    return hidden, hidden + np.float32(shift), head, other


def _directly(first: Array, second: Array) -> tuple[float, float]:
    """KL and agreement of whole logits [positions, vocabulary]."""
    p, q = (np.exp(one - one.max(-1, keepdims=True)) for one in (first, second))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    divergence = float((p * np.log(p / q)).sum(-1).mean())
    return divergence, float(np.mean(p.argmax(-1) == q.argmax(-1)))


@pytest.mark.parametrize("rows", [1, 7, 101, 500])
def test_itself_differs_by_nothing(rows: int) -> None:
    hidden, _, head, _ = _case(1, 0.1)
    assert compare(hidden, hidden, _heads(head, head, rows)) == Accuracy(0.0, 1.0, 9)


@pytest.mark.parametrize("rows", [1, 7, 101])
@pytest.mark.parametrize("shift", [0.01, 0.3, 30.0])
def test_blocks_of_the_vocabulary_add_up_to_the_whole(rows: int, shift: float) -> None:
    hidden, changed, head, other = _case(2, shift)
    found = compare(hidden, changed, _heads(head, other, rows))
    own, new = (hidden @ head.T).astype(np.float64), (changed @ other.T).astype(np.float64)
    if shift < 10:  # beyond, the direct way divides by zero
        divergence, agreement = _directly(own, new)
        assert found.divergence == pytest.approx(divergence, rel=1e-4)
        assert found.agreement == agreement
    assert np.isfinite(found.divergence)
    assert found.divergence > 0


def test_the_sentence_has_both_figures() -> None:
    said = str(Accuracy(0.00412, 0.9712, 512))
    assert said == (
        "KL 0.0041, same first token for 97.1 % of 512 positions, against the source's own weights"
    )


def test_the_norm_before_a_head() -> None:
    hidden = np.array([[3.0, -4.0]], np.float32)
    found = normalised(hidden, np.array([1.0, 2.0], np.float32), 0.5)
    np.testing.assert_allclose(found, [[3 / 13**0.5, -8 / 13**0.5]], rtol=1e-6)


def test_the_text_ships_with_the_package_and_is_long_enough() -> None:
    text = stored_text()
    assert text.isascii()
    assert len(text) > 1500
    assert "def " in text


def _layer(factor: float) -> Any:
    hidden = ops.parameter([-1, -1, 4], np.float32, name="inputs_embeds")
    hidden.output(0).set_names({"inputs_embeds"})
    positions = ops.parameter([-1, -1], np.int64, name="position_ids")
    positions.output(0).set_names({"position_ids"})
    place = ops.unsqueeze(ops.convert(positions, np.float32), ops.constant(np.int64(2)))
    scaled = ops.multiply(hidden, ops.constant(np.float32(factor)))
    return ov.Model([ops.result(ops.add(scaled, place))], [hidden, positions], "layer")


@pytest.mark.openvino
@pytest.mark.slow
def test_each_side_goes_through_its_own_parts_and_resumes(tmp_path: Path) -> None:
    own = np.ones((3, 4), np.float32)
    first = Comparison(tmp_path / "states")
    first.begin(own, 2 * own)
    first.advance(1, _layer(10), _layer(100))
    again = Comparison(tmp_path / "states")  # another process, after an interruption
    assert (again.has(1), again.has(2)) == (True, False)
    again.advance(2, _layer(1), _layer(1))
    source, changed = again.states(2)
    places = 2 * np.arange(3, dtype=np.float32)[None, :, None]
    np.testing.assert_array_equal(source, 10 * own[None] + places)
    np.testing.assert_array_equal(changed, 200 * own[None] + places)
    assert [path.name for path in (tmp_path / "states").iterdir()] == ["2.npz"]
