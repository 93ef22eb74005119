"""What a stage must show before it may say ready.

A fixed input goes through the loaded stage: the output must be finite and depend on the input, a
rewind must leave no trace, and two chunks must equal one. Where an answer of a trusted device is
stored, it must match too. A stage whose token trees are wrong serves without them. Called by the
stage host, on the engine's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.step import Row, Step
from meshinfer.engine.answer import Answer, AnswerFacts
from meshinfer.engine.stage import Stage, StageShape
from meshinfer.errors import StageFailed

CHUNK_BOUND = 0.05
"""Most that a row of the second of two chunks may differ from one, as a share of its norm. Measured
on SmolLM2: 0 at f32 and bf16; dynamic quantisation may reach 0.03, as other matrix shapes sum in
another order. A wrong cache gives 0.35 and more."""

REFERENCE_BOUND = 0.2
"""Most that nine rows of ten may differ from the stored answer, as a share of their norm. Measured
on SmolLM2's stages: bf16 against f32 up to 0.08 (a single row 0.22); other tokens 1 and more."""

_INPUT_VERSION = 1
_SEED = 20_261_130
_TOKENS = 40  # more than one cache block on CPU and GPU, and no multiple of either
_REPEATED = 8  # tokens that are computed again after a rewind
_TREE_ROOM = 8  # tokens at the end of the input that the test of trees may use
_SEQUENCES = (-1, -2)  # a plan's sequences are never negative
_REMEDY = "Use another device of that PC, or update its driver."


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What was measured, as shares of the output's norm."""

    rewind_difference: float
    chunk_difference: float
    reference_difference: float | None  # None: no answer was stored
    tree_difference: float | None = None  # None: it has no trees


def self_test(
    stage: Stage, answer: Answer | None = None, chunk_bound: float = CHUNK_BOUND
) -> SelfTest:
    """Leaves the cache as it found it. Raises StageFailed that names what differed."""
    probe = _Probe(stage)
    try:
        whole = probe.whole()
        _check_alive(whole, probe.other())
        rewind = _greatest(probe.again(), probe.again_after_garbage())
        if rewind:
            raise _failed("computing the same tokens again after a rewind", rewind, 0.0)
        chunk = _greatest(whole[-probe.second :], probe.chunked())
        if chunk > chunk_bound:
            raise _failed("computing a prompt in two chunks", chunk, chunk_bound)
        reference = None if answer is None else compare_answer(_answer(stage.shape, whole), answer)
        tree = probe.tree_difference() if stage.shape.trees else None
        if tree is not None and not tree <= chunk_bound:
            stage.refuse_trees()
    finally:
        probe.release()
    return SelfTest(rewind, chunk, reference, tree)


def record_answer(stage: Stage) -> Answer:
    """What this stage, on a device that is trusted, gives for the self-test's input."""
    probe = _Probe(stage)
    try:
        return _answer(stage.shape, probe.whole())
    finally:
        probe.release()


def compare_answer(actual: Answer, expected: Answer, bound: float = REFERENCE_BOUND) -> float:
    """What nine rows of ten stay below. Raises StageFailed when it is above `bound`."""
    if actual.facts != expected.facts or actual.output.shape != expected.output.shape:
        raise StageFailed("The stored answer belongs to another stage.", "Fetch the stage again.")
    difference = float(np.quantile(_differences(expected.output, actual.output), 0.9))
    if not difference <= bound:
        raise _failed("the stored answer of a trusted device", difference, bound)
    return difference


class _Probe:
    """Runs the fixed input, or parts of it, in two sequences of its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._tokens = min(_TOKENS, stage.shape.cache_tokens)
        self._repeated = min(_REPEATED, self._tokens)
        # Two inputs of the same length: the one to judge by, and another.
        self._input, self._garbage = _inputs(stage.shape, self._tokens)
        self.second = max(1, self._tokens * 2 // 5)  # tokens of the second chunk

    def whole(self) -> NDArray[np.float32]:
        """The input at once. [tokens, width], as everything here."""
        return self._run(_SEQUENCES[0], 0, self._input)

    def other(self) -> NDArray[np.float32]:
        """Other tokens at the same positions, for an output that must differ; then the input."""
        other = self._run(_SEQUENCES[0], 0, self._garbage)
        self.whole()
        return other

    def again(self) -> NDArray[np.float32]:
        """The last tokens once more, over themselves."""
        start = self._tokens - self._repeated
        return self._run(_SEQUENCES[0], start, self._input[start:])

    def again_after_garbage(self) -> NDArray[np.float32]:
        """The same, after other tokens stood in their places."""
        start = self._tokens - self._repeated
        self._run(_SEQUENCES[0], start, self._garbage[start:])
        return self.again()

    def chunked(self) -> NDArray[np.float32]:
        """The second of two chunks, in a fresh sequence."""
        split = self._tokens - self.second
        self.release()
        if split:
            self._run(_SEQUENCES[1], 0, self._input[:split])
        return self._run(_SEQUENCES[1], split, self._input[split:])

    def tree_difference(self) -> float | None:
        """Between the branches of a small tree and the same tokens one behind the other, also of
        what follows a branch that was moved together. None: the cache is too small for it."""
        start = self._tokens - _TREE_ROOM
        if start < 1:
            return None
        root, one, two, after = self._input[start:][:4]
        self.release()
        self._run(_SEQUENCES[0], 0, self._input[:start])
        # In the same shapes: what is wrong shall show, not the order of sums.
        first, second = (
            self._run(_SEQUENCES[0], start, np.stack([root, branch, after]))
            for branch in (one, two)
        )
        third = self._run(_SEQUENCES[0], start + 2, after[None])
        tree = self._run(_SEQUENCES[0], start, np.stack([root, one, two]), parents=(-1, 0, 0))
        moved = self._run(_SEQUENCES[0], start + 2, after[None], kept=(start + 2,))
        found = np.concatenate([tree, moved])
        wanted = np.concatenate([first[:2], second[1:2], third])
        return _greatest(wanted, found)

    def release(self) -> None:
        self._stage.forward(Step(0, (), (), released=_SEQUENCES), self._hidden(self._input[:0]))

    def _run(
        self,
        sequence: int,
        position: int,
        part: NDArray[Any],
        parents: tuple[int, ...] = (),
        kept: tuple[int, ...] = (),
    ) -> NDArray[np.float32]:
        count = len(part)
        first = self._stage.shape.first
        tokens = tuple(part.tolist()) if first else (0,) * count
        row = Row(sequence, position, count, count, parents=parents, kept=kept)
        step = Step(0, (row,), tokens)
        output = np.array(self._stage.forward(step, self._hidden(part)))
        width = self._width()
        if output.shape != (count, width):
            raise StageFailed(
                f"The self-test gave an output {output.shape} instead of {(count, width)}.",
                _REMEDY,
            )
        values = widened(output)
        if not np.isfinite(values).all():
            raise StageFailed("The self-test gave numbers that are not finite.", _REMEDY)
        return values

    def _hidden(self, part: NDArray[Any]) -> NDArray[Any] | None:
        return None if self._stage.shape.first else part

    def _width(self) -> int:
        shape = self._stage.shape
        return shape.vocabulary_size if shape.last else shape.output_width


def fixed_input(shape: StageShape, tokens: int) -> NDArray[Any]:
    """Fixed ids [tokens] for a first stage, else activations [tokens, input_width]."""
    return _inputs(shape, tokens)[0]


def _inputs(shape: StageShape, tokens: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Ids [tokens] or activations [tokens, input_width]; the same for every precision."""
    random = np.random.Generator(np.random.Philox(_SEED))
    if shape.first:
        ids = random.permutation(min(shape.vocabulary_size or 256, 2048))[: 2 * tokens]
        ids = np.resize(ids, 2 * tokens)
        return ids[:tokens], ids[tokens:]
    normal = random.standard_normal((2 * tokens, shape.input_width)).astype(np.float32)
    bits = (normal.view(np.uint32) >> 16).astype(np.uint16)  # bf16, rounded towards zero
    chosen = bits if shape.precision == "bf16" else widened(bits)
    return chosen[:tokens], chosen[tokens:]


def widened(values: NDArray[Any]) -> NDArray[np.float32]:
    """bf16 bits as f32; f32 as it is."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def _differences(expected: NDArray[np.float32], actual: NDArray[np.float32]) -> NDArray[np.float64]:
    """For each row its distance from the expected one, as a share of that one's norm."""
    wanted = expected.astype(np.float64)
    distances = np.linalg.norm(wanted - actual, axis=1)
    shares: NDArray[np.float64] = distances / np.maximum(np.linalg.norm(wanted, axis=1), 1e-30)
    return shares


def _greatest(expected: NDArray[np.float32], actual: NDArray[np.float32]) -> float:
    return float(_differences(expected, actual).max())


def _check_alive(output: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    if not output.any():
        raise StageFailed("The self-test gave zeros only.", _REMEDY)
    if not (output != other).any():
        raise StageFailed("The self-test gave the same for different inputs.", _REMEDY)


def _answer(shape: StageShape, output: NDArray[np.float32]) -> Answer:
    facts = AnswerFacts(
        input_version=_INPUT_VERSION,
        tokens=len(output),
        first=shape.first,
        last=shape.last,
        input_width=shape.input_width,
        output_width=shape.output_width,
        vocabulary_size=shape.vocabulary_size,
    )
    return Answer(facts, output)


def _failed(what: str, difference: float, bound: float) -> StageFailed:
    return StageFailed(
        f"The self-test differs by {difference:.2g} (at most {bound:.2g} is right) when "
        f"comparing {what}.",
        _REMEDY,
    )
