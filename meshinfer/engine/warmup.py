"""The first use of a shape costs: buffers grow, kernels are made. Better before "ready" than later.

Measured on OpenVINO 2026.4.1, CPU, the 135M: a prompt of 37 tokens takes 1060 ms the first time and
110 ms ever after; up to 64 tokens come with it, 100 tokens pay once more (case F07).
Called by the stage host, on the engine's thread, after the self-test.
"""

from __future__ import annotations

from meshinfer.core.step import Row, Step
from meshinfer.engine.selftest import fixed_input
from meshinfer.engine.stage import Stage

SIZES = (256, 64, 8, 1, 1, 1)
"""New tokens of one sequence: the largest prompt chunk that the scheduler makes, then down to a
decode step, which settles after three."""

_SEQUENCE = 2**32 - 3  # no real sequence is numbered so high


def warm_up(stage: Stage) -> None:
    """Run steps of all sizes that fit the cache, and forget them. Raises StageFailed."""
    for size in SIZES:
        count = min(size, stage.shape.cache_tokens)
        inputs = fixed_input(stage.shape, count)
        first = stage.shape.first
        tokens = tuple(inputs.tolist()) if first else (0,) * count
        stage.forward(Step(0, (Row(_SEQUENCE, 0, count, 1),), tokens), None if first else inputs)
    stage.forward(Step(0, (), (), (_SEQUENCE,)), None if stage.shape.first else inputs[:0])
