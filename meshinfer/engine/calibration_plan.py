"""Which configuration to try next, and which to take: pure functions of the trials so far.

Coordinate descent from the default: one part at a time changes, from the best so far, never the
full product, so that a stage is compiled at most MOST_TRIALS times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshinfer.core.configuration import REFERENCE, Configuration, default_configuration
from meshinfer.core.step_curve import StepCurve
from meshinfer.engine.accuracy_guard import Accuracy

MOST_TRIALS = 7

SAME_TIME = 1.03
"""Times within 3 % are equal: that is what medians of a few steps tell apart on a quiet PC."""

HOPELESS = 1.15
"""A candidate that is slower than the best by this, over the sizes that it has shown, is not
measured to the end."""

DECODE_WEIGHTS = {1: 0.30, 2: 0.20, 4: 0.15, 8: 0.10, 16: 0.06, 32: 0.04}
"""How much each row count matters. An office fleet mostly serves one to eight sequences at a time,
and verifying a few drafted tokens of one has the same shapes; 16 and 32 are its busiest minutes."""

PREFILL_WEIGHTS = {16: 0.02, 64: 0.05, 256: 0.08}
"""Together 0.15: a prompt of 300 tokens takes about an eighth of the time of its answer of 200
(1.9 s and 14 s for the 1.5B on one core)."""

_FEWEST_THREADS_TO_HALVE = 4


@dataclass(frozen=True, slots=True)
class Space:
    """What may be tried. `start` has the plan's precision, as every candidate for the choice has:
    ports between stages follow it. `half_threads` 0 and an empty `other_precision` mean that there
    is nothing to try. With `reference` None nothing is judged. `is_forced`: the start is taken
    whatever is found."""

    start: Configuration
    reference: Configuration | None = None
    groups: tuple[int, ...] = ()  # in the order of trying, all but the first after other parts
    caches: tuple[str, ...] = ()
    half_threads: int = 0
    other_precision: str = ""
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one configuration. `refused` says why it cannot be taken; an incomplete curve
    belongs to a candidate that was given up as too slow."""

    configuration: Configuration
    curve: StepCurve | None = None
    is_complete: bool = False
    accuracy: Accuracy | None = None
    refused: str = ""
    is_confirmed: bool = False  # measured a second time, later


def full_space(
    precision: str, threads: int, available_threads: int, precisions: Sequence[str]
) -> Space:
    """For a CPU. `threads` is the owner's limit (0: none), `precisions` what the device offers."""
    start = default_configuration(precision, threads)
    most = threads or available_threads
    other = next((one for one in precisions if one != precision), "")
    return Space(
        start=start,
        reference=replace(REFERENCE, threads=threads),
        # u8 only saves memory beside what the plan counted; another float would need more, or is
        # refused by the plugin.
        caches=("u8",),
        # The smaller the more accurate, and the faster at one row on the CPU with AMX.
        groups=tuple(group for group in (32, 128, 64) if group != start.group),
        half_threads=most // 2 if most >= _FEWEST_THREADS_TO_HALVE else 0,
        other_precision=other,
    )


def next_configuration(space: Space, trials: Sequence[Trial]) -> Configuration | None:
    """None: everything worth trying was tried, or enough. The start a second time: see Trial."""
    tried = [trial.configuration for trial in trials]
    loads = len(trials) + sum(trial.is_confirmed for trial in trials)
    if space.start not in tried:
        return space.start
    if space.reference is not None and space.reference not in tried:
        return space.reference
    if loads >= MOST_TRIALS:
        return None
    own = [one for one in tried if one.precision == space.start.precision]
    best = choose(space, trials).configuration
    hopeless = {trial.configuration.group for trial in trials if not trial.is_complete}
    for is_tried, changed in _moves(space, best, hopeless):
        if not any(is_tried(one) for one in own) and changed not in tried:
            return changed
    if _is_start_in_doubt(space, trials):
        return space.start
    return _in_other_precision(space, best, tried)


def choose(space: Space, trials: Sequence[Trial]) -> Trial:
    """The fastest of those that may be taken; of equally fast ones the most accurate, then the one
    that changes least. The start when there is none, also where it is refused: the reason is in
    its trial."""
    able = [trial for trial in trials if not space.is_forced and _may_be_taken(space, trial)]
    start = next(
        (trial for trial in trials if trial.configuration == space.start), Trial(space.start)
    )
    baseline = start.curve or next((one.curve for one in able if one.curve is not None), None)
    if not able or baseline is None:
        return start
    times = [(relative_time(one.curve, baseline), one) for one in able if one.curve is not None]
    fastest = min(time for time, _ in times)
    equal = [(time, one) for time, one in times if time <= fastest * SAME_TIME]
    return min(equal, key=lambda pair: (*_preference(space, pair[1]), pair[0]))[1]


def best_elsewhere(trials: Sequence[Trial], chosen: Trial) -> tuple[Trial, float] | None:
    """The fastest trial in another precision than the chosen one's that is accurate enough, and its
    time as a share of the chosen one's; None where no such trial went to its end."""
    if chosen.curve is None:
        return None
    able = [
        (relative_time(trial.curve, chosen.curve), trial)
        for trial in trials
        if trial.configuration.precision != chosen.configuration.precision
        and trial.curve is not None
        and trial.is_complete
        and not trial.refused
    ]
    if not able:
        return None
    share, trial = min(able, key=lambda pair: pair[0])
    return trial, share


def relative_time(curve: StepCurve, baseline: StepCurve) -> float:
    """Time of the work of an office fleet, as a share of the baseline's, over the sizes that both
    have; below 1 is faster. Each size counts by its share of the work, however long its steps
    take."""
    weighted = [
        (weight, seconds / dict(base)[size])
        for points, base, weights in (
            (curve.decode, baseline.decode, DECODE_WEIGHTS),
            (curve.prefill, baseline.prefill, PREFILL_WEIGHTS),
        )
        for size, seconds in points
        if (weight := weights.get(size, 0.0)) and size in dict(base)
    ]
    total = sum(weight for weight, _ in weighted)
    return sum(weight * share for weight, share in weighted) / total if total else 1.0


def is_contender(curve: StepCurve, best: StepCurve | None) -> bool:
    """Whether its accuracy is worth finding out."""
    return best is None or relative_time(curve, best) <= SAME_TIME


def _moves(
    space: Space, best: Configuration, hopeless: set[int]
) -> list[tuple[Callable[[Configuration], bool], Configuration]]:
    """One part changed, in the order of what it may bring; with a test whether that part was tried
    in any company."""
    groups = [
        (lambda one, group=group: one.group == group, replace(best, group=group))
        for group in space.groups
    ]
    threads = [
        (lambda one: one.threads == space.half_threads, replace(best, threads=space.half_threads))
    ]
    caches = [
        (lambda one, cache=cache: one.cache == cache, replace(best, cache=cache))
        for cache in space.caches
    ]
    halved = threads if space.half_threads else []
    # The other groups lie between the first and the start: where that one is far behind, they are.
    between = [] if hopeless & set(space.groups[:1]) else groups[1:]
    return [*groups[:1], *halved, *caches, *between]


def _in_other_precision(
    space: Space, best: Configuration, tried: Sequence[Configuration]
) -> Configuration | None:
    """One look at what a plan in another precision would gain. The reference is no such look."""
    other = space.other_precision
    looked = [one for one in tried if one.precision == other and one != space.reference]
    if not other or looked:
        return None
    changed = replace(best, precision=other, cache=other, group=best.group or 128)
    return None if changed in tried else changed


def _is_start_in_doubt(space: Space, trials: Sequence[Trial]) -> bool:
    """Whether something else is about to be taken because it was faster: everything was compared
    with the start, which may have been measured while the PC was busy."""
    start = next(trial for trial in trials if trial.configuration == space.start)
    is_able = start.is_complete and not start.refused and not start.is_confirmed
    return is_able and choose(space, trials).configuration != space.start


def _may_be_taken(space: Space, trial: Trial) -> bool:
    """The start needs no judge where there is none; every other one does."""
    is_judged = trial.accuracy is not None or trial.configuration == space.start
    return (
        trial.configuration.precision == space.start.precision
        and trial.is_complete
        and not trial.refused
        and is_judged
    )


def _preference(space: Space, trial: Trial) -> tuple[float, int]:
    """The smaller the better: error to the third digit, then parts that differ from the start."""
    error = trial.accuracy.error if trial.accuracy else float("inf")
    one, start = trial.configuration, space.start
    changes = (one.group != start.group) + (one.cache != start.cache)
    return round(error, 3), changes + (one.threads != start.threads)
