"""Whether a way of computing is accurate enough: a stage's output against the reference's.

The reference is the same stage in f32 without any quantisation. Where logits leave the stage, they
are compared as distributions, elsewhere the rows by their distance. Called by the calibration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.step import Row, Step
from meshinfer.engine.calibration_input import CalibrationInput, InputKind
from meshinfer.engine.selftest import widened
from meshinfer.engine.stage import Stage
from meshinfer.errors import StageFailed

DIVERGENCE_BOUND = 0.05
"""Nats. Measured with SmolLM2 135M and Qwen2.5 1.5B: on text 0.002 to 0.012 for everything that is
offered, on invented input 0.003 to 0.048, and 0.09 to 0.16 for a u8 cache of the 1.5B, which loses
the outliers of its keys. The plugin's own default (bf16, u8 by channel) gives 0.021 on text."""

AGREEMENT_BOUND = 0.95
"""Share of positions, on text only: there everything that is offered has 0.98 and more. Invented
input has nothing to predict and many candidates of equal probability: the default has 0.94 there,
so it is judged by the divergence alone."""

NEAR_TIE = 0.2
"""Nats. A first token that the reference finds at least 0.82 times as likely as its own first is
no disagreement: without this, f32 with groups of 128 has 0.92 to 0.97 on text, and a draw at any
temperature would take either."""

DIFFERENCE_BOUND = 0.1
"""Most that nine rows of ten may differ, as a share of their norm, where activations leave. Half of
what the self-test accepts from a device at all. Measured on first halves of the same models: bf16
0.02 to 0.055, f32 with groups of 128 0.02 to 0.052, a u8 cache of the 1.5B 0.11 to 0.23."""

_PART = 16  # positions at a time: logits of a large vocabulary stay small
_SEQUENCE = 2**32 - 5  # no real sequence is numbered so high


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Against the reference. `divergence` (mean KL, nats) and `agreement` (share of positions with
    the same first token, near ties included) of logits, or `difference` (nine rows of ten stay
    below, share of the norm) of activations; what does not apply is None."""

    positions: int
    divergence: float | None = None
    agreement: float | None = None
    difference: float | None = None

    @property
    def error(self) -> float:
        """The smaller the better, between candidates of one stage."""
        return self.divergence if self.divergence is not None else self.difference or 0.0

    def __str__(self) -> str:
        if self.divergence is None:
            return f"differs by {self.error:.4f} over {self.positions} positions"
        return (
            f"KL {self.divergence:.4f}, same first token for {100 * (self.agreement or 0):.1f} % "
            f"of {self.positions} positions"
        )


def refusal(accuracy: Accuracy, kind: InputKind) -> str:
    """Why it is not accurate enough; empty when it is."""
    too_far = [
        f"{name} {value:.3g} is above {bound}"
        for name, value, bound in (
            ("KL divergence", accuracy.divergence, DIVERGENCE_BOUND),
            ("difference", accuracy.difference, DIFFERENCE_BOUND),
        )
        if value is not None and not value <= bound
    ]
    agreement = accuracy.agreement
    if kind is not InputKind.INVENTED and agreement is not None and agreement < AGREEMENT_BOUND:
        too_far.append(f"agreement {agreement:.3g} is below {AGREEMENT_BOUND}")
    return ", ".join(too_far)


def outputs(stage: Stage, inputs: CalibrationInput) -> Iterator[NDArray[Any]]:
    """What the stage gives for every position, a part at a time: log-probabilities f16 [rows,
    vocabulary], else activations f32 [rows, width]. The cache takes part, and is as it was when the
    iterator has ended. Raises StageFailed.

    f16 halves the memory; its rounding is an unbiased 0.0002 of a log-probability, which adds less
    than 0.0001 to a mean divergence."""
    shape = stage.shape
    count = min(len(inputs.values), shape.cache_tokens)
    try:
        for start in range(0, count, _PART):
            values = inputs.values[start : min(start + _PART, count)]
            row = Row(_SEQUENCE, start, len(values), len(values))
            tokens = tuple(values.tolist()) if shape.first else (0,) * len(values)
            result = stage.forward(Step(0, (row,), tokens), None if shape.first else values)
            if not np.isfinite(result if shape.precision == "f32" else widened(result)).all():
                raise StageFailed("The calibration gave numbers that are not finite.")
            yield _log_probabilities(result) if shape.last else np.array(widened(result))
    finally:
        nothing = None if shape.first else inputs.values[:0]
        stage.forward(Step(0, (), (), released=(_SEQUENCE,)), nothing)


def joined(parts: Iterable[NDArray[Any]], positions: int) -> NDArray[Any]:
    """Parts of `outputs` in one array, with at most one of them beside it."""
    whole: NDArray[Any] | None = None
    filled = 0
    for part in parts:
        if whole is None:
            whole = np.empty((positions, part.shape[1]), part.dtype)
        whole[filled : filled + len(part)] = part
        filled += len(part)
    assert whole is not None, "an input has a position at least"
    return whole[:filled]


def compare(reference: NDArray[Any], candidate: Iterable[NDArray[Any]]) -> Accuracy:
    """`candidate` gives the parts of the same input's output, of any length."""
    if reference.dtype == np.float16:
        return _compared_distributions(reference, candidate)
    shares = []
    done = 0
    for part in candidate:
        own = reference[done : done + len(part)]
        distances = np.linalg.norm(own - part, axis=1)
        shares.append(distances / np.maximum(np.linalg.norm(own, axis=1), 1e-30))
        done += len(part)
    return Accuracy(done, difference=float(np.quantile(np.concatenate(shares), 0.9)))


def parts_of(whole: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """As `outputs` gave them."""
    for start in range(0, len(whole), _PART):
        yield whole[start : start + _PART]


def _compared_distributions(reference: NDArray[Any], candidate: Iterable[NDArray[Any]]) -> Accuracy:
    divergences, agreeing, done = 0.0, 0, 0
    for part in candidate:
        own = reference[done : done + len(part)].astype(np.float32)
        other = part.astype(np.float32)
        chosen = np.take_along_axis(own, other.argmax(axis=1)[:, None], axis=1)[:, 0]
        agreeing += int((own.max(axis=1) - chosen <= NEAR_TIE).sum())
        np.subtract(own, other, out=other)
        np.exp(own, out=own)
        own *= other
        divergences += float(own.sum(dtype=np.float64))
        done += len(part)
    # Rounding of sums may leave a little below zero.
    return Accuracy(done, max(0.0, divergences / done), agreeing / done)


def _log_probabilities(logits: NDArray[Any]) -> NDArray[Any]:
    """f32 [rows, vocabulary] -> f16. Far tails are cut where f16 ends."""
    logs = logits - logits.max(axis=1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    np.maximum(logs, np.finfo(np.float16).min, out=logs)
    halves: NDArray[Any] = logs.astype(np.float16)
    return halves
