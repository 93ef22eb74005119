"""Proof that a split model computes exactly what the whole one does.

A model's IR goes in; both forms run the same steps in this process, several sequences at once, and
every row of logits is compared bit by bit. Called by `meshinfer verify` and the bench, on a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.model import Unit
from meshinfer.core.step import Row, Step
from meshinfer.engine.configuration import check_options
from meshinfer.engine.paged import PagedStage, StageOptions
from meshinfer.engine.stage import Stage
from meshinfer.errors import StageFailed, UsageError
from meshinfer.node.even_cuts import Cut, cut_at, even_cut
from meshinfer.weights.cache_reorder import reorder_faults
from meshinfer.weights.cut import cut, read_model
from meshinfer.weights.cut_points import anatomy

MODEL_FILE = "openvino_model.xml"

Progress = Callable[[float, str], None]
"""Is told the share that is done, 0..1, and what comes next."""

_SEED = 4093
_FIRST_PROMPT, _LONGER_EACH = 5, 18  # tokens; the second and third prompt fill several blocks


@dataclass(frozen=True, slots=True)
class Check:
    """One split in one precision. `difference` is the largest of all logits; 0.0 is exact."""

    cut: Cut
    precision: str
    difference: float

    @property
    def stages(self) -> int:
        return len(self.cut)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    model: str
    checks: tuple[Check, ...]
    not_run: tuple[str, ...]  # why a precision or a cut was left out
    notes: tuple[str, ...] = ()  # where the model cannot be cut, and what a GPU would not fuse

    @property
    def difference(self) -> float:
        """The largest of all checks."""
        return max(check.difference for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """What `meshinfer verify --json` prints; the largest difference stands last."""
        checks = [
            {
                "stages": check.stages,
                "precision": check.precision,
                "cut": " ".join(map(str, check.cut)),
                "difference": check.difference,
            }
            for check in self.checks
        ]
        report: dict[str, Any] = {"model": self.model, "checks": checks}
        if self.not_run:
            report["not_run"] = list(self.not_run)
        if self.notes:
            report["notes"] = list(self.notes)
        return {**report, "difference": self.difference}


@dataclass(frozen=True, slots=True)
class _Recording:
    """What the whole model was asked, and its logits for each step."""

    steps: tuple[Step, ...]
    logits: tuple[NDArray[np.float32], ...]


def verify(
    source: Path,
    stages: Sequence[int] = (2, 3, 5),
    precisions: Sequence[str] = ("f32", "bf16"),
    inside_layer: bool = True,
    steps: int = 64,
    sequences: int = 3,
    progress: Progress | None = None,
    cuts: Sequence[Cut] | None = None,
    threads: int = 0,
    borders: Sequence[Sequence[int]] = (),
) -> VerifyReport:
    """Compare split and whole on this PC's CPU. Blocks.

    `source` is a model folder or its XML file. `stages` are cut evenly at layers, and once more
    inside layers unless that is switched off; `borders` between units (0 to their number) or whole
    `cuts` replace both. Each check runs one prefill and `steps` decode steps of `sequences`
    sequences, with the tokens that the whole model chose.
    Raises StageFailed (it cannot be read, cut or run), UsageError (nothing to compare).
    """
    xml = source / MODEL_FILE if source.is_dir() else source
    _tell(progress, 0.0, "looking for cut points")
    units, refused = _taken_apart(xml)
    runnable, not_run = _runnable(precisions)
    if cuts is None and borders:
        cuts = [cut_at(one, len(units)) for one in borders]
    elif cuts is None:
        cuts, impossible = _even_cuts(units, stages, inside_layer)
        not_run += impossible
    total = len(runnable) * (1 + len(cuts))
    if not runnable or not cuts:
        raise UsageError("There is nothing to compare.", " ".join(not_run))
    checks: list[Check] = []
    notes = dict.fromkeys(refused)
    done = 0
    for precision in runnable:
        options = StageOptions(
            precision=precision, threads=threads, cache_tokens=_cache_tokens(steps, sequences)
        )
        _tell(progress, done / total, f"the whole model in {precision}")
        recording = _record(xml, options, steps, sequences)
        done += 1
        for one in cuts:
            _tell(progress, done / total, f"{len(one)} stages in {precision}")
            difference, faults = _replay(xml, one, options, recording)
            checks.append(Check(one, precision, difference))
            notes.update(dict.fromkeys(faults))
            done += 1
    _tell(progress, 1.0, "done")
    return VerifyReport(xml.parent.name, tuple(checks), tuple(not_run), tuple(notes))


def _taken_apart(xml: Path) -> tuple[list[Unit], tuple[str, ...]]:
    """A model's units, and where it cannot be cut."""
    whole = anatomy(read_model(xml))
    return [one.unit for one in whole.units], whole.refused


def _even_cuts(
    units: Sequence[Unit], stages: Sequence[int], inside_layer: bool
) -> tuple[list[Cut], list[str]]:
    """The cuts, and why some that were asked for are not possible."""
    cuts: list[Cut] = []
    impossible: list[str] = []
    for count in stages:
        for inside in (False, True) if inside_layer else (False,):
            try:
                cuts.append(even_cut(units, count, inside))
            except UsageError as error:
                impossible.append(error.cause)
    return cuts, impossible


def _runnable(precisions: Sequence[str]) -> tuple[list[str], list[str]]:
    runnable: list[str] = []
    not_run: list[str] = []
    for precision in precisions:
        try:
            check_options(StageOptions(precision=precision))
        except StageFailed as error:
            not_run.append(error.cause)
        else:
            runnable.append(precision)
    return runnable, not_run


def _cache_tokens(steps: int, sequences: int) -> int:
    longest = _FIRST_PROMPT + _LONGER_EACH * sequences + steps
    return sequences * (longest + 64)


def _record(xml: Path, options: StageOptions, steps: int, sequences: int) -> _Recording:
    """Run the whole model, letting it choose the tokens."""
    stage = PagedStage.load(xml, options)
    try:
        step = _prefill(sequences, stage.shape.vocabulary_size)
        asked: list[Step] = []
        answers: list[NDArray[np.float32]] = []
        for number in range(1, steps + 2):
            asked.append(step)
            answers.append(np.array(stage.forward(step, None)))
            step = _next_step(number, step, answers[-1])
    finally:
        stage.close()
    return _Recording(tuple(asked), tuple(answers))


def _prefill(sequences: int, vocabulary_size: int) -> Step:
    random = np.random.Generator(np.random.Philox(_SEED))
    rows = tuple(
        Row(sequence, 0, _FIRST_PROMPT + _LONGER_EACH * sequence, 1)
        for sequence in range(sequences)
    )
    count = sum(row.count for row in rows)
    return Step(0, rows, tuple(random.integers(0, vocabulary_size, count).tolist()))


def _next_step(number: int, step: Step, logits: NDArray[np.float32]) -> Step:
    rows = tuple(Row(row.sequence, row.position + row.count, 1, 1) for row in step.rows)
    return Step(number, rows, tuple(logits.argmax(axis=1).tolist()))


def _replay(
    xml: Path, ranges: Cut, options: StageOptions, recording: _Recording
) -> tuple[float, tuple[str, ...]]:
    """The largest difference of the split model's logits from the recorded ones, and what a GPU
    would not fuse in its stages."""
    chain: list[Stage] = []
    faults: list[str] = []
    try:
        for units in ranges:
            stage = cut(xml, units)
            faults += reorder_faults(stage)
            chain.append(PagedStage.load(stage, options))
        largest = 0.0
        for step, expected in zip(recording.steps, recording.logits, strict=True):
            largest = max(largest, _difference(_run(chain, step), expected))
        return largest, tuple(faults)
    finally:
        for one in chain:
            one.close()


def _run(chain: Sequence[Stage], step: Step) -> NDArray[Any]:
    result: NDArray[Any] | None = None
    for stage in chain:
        result = stage.forward(step, result)
    assert result is not None
    return result


def _difference(actual: NDArray[Any], expected: NDArray[np.float32]) -> float:
    """0.0 for equal bits only. What cannot be subtracted differs infinitely."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if np.array_equal(actual.view(np.uint32), expected.view(np.uint32)):
        return 0.0
    largest = float(np.abs(actual.astype(np.float64) - expected).max())
    # A NaN, or zeros of different sign, must not pass as exact.
    return largest if largest > 0 else float("inf")


def _tell(progress: Progress | None, share: float, doing: str) -> None:
    if progress is not None:
        progress(share, doing)
