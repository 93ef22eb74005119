"""Steps as a trace file for Perfetto (ui.perfetto.dev) or chrome://tracing: who computed when, and
who waited.

Steps that came back enter, events of the Trace Event Format leave: JSON objects with times in
microseconds. Stages have no common clock, so their intervals are placed inside the round trip that
the leader measured: by their own durations, with the rest of the time shared equally among the
hops. Durations are real, the moments of a stage are an estimate. No text, no token and no name of a
user is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshinfer.core.step import StageTiming
from meshinfer.errors import UsageError
from meshinfer.serve.ring import StepOutcome

Event = dict[str, Any]

LEADER, WIRE, STAGES = 1, 2, 3
"""Groups of tracks (the format's processes)."""

_SIDES = 2
"""Tracks a stage: its engine, and the loop that checks, packs and sends."""

LANES = 64
"""Most steps in flight that have a line of their own; micro-batches are few."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step that came back, on the leader's clock."""

    number: int
    rows: int
    tokens: int
    began_s: float
    ended_s: float
    timings: tuple[StageTiming, ...]  # one a stage

    @classmethod
    def of(cls, outcome: StepOutcome) -> TracedStep:
        """From what the leader's ring tells of it."""
        ended_s = outcome.sent_s + outcome.round_trip_us / 1e6
        return cls(
            number=outcome.step,
            rows=outcome.rows,
            tokens=outcome.tokens,
            began_s=outcome.sent_s,
            ended_s=ended_s,
            timings=outcome.timings,
        )


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """One stage's part of a step, in microseconds since the first step began."""

    arrival: float
    begin: float  # of the computation
    end: float
    gone: float  # handed to the next hop


def place(step: TracedStep, origin_s: float) -> list[PlacedStage]:
    """Each stage inside the round trip. Clocks that disagree shrink everything to fit into it."""
    start = (step.began_s - origin_s) * 1e6
    whole = max(0.0, (step.ended_s - step.began_s) * 1e6)
    busy = sum(one.queue_us + one.compute_us + one.handle_us for one in step.timings)
    scale = min(1.0, whole / busy) if busy else 1.0
    hop = (whole - busy * scale) / (len(step.timings) + 1)
    placed = []
    for timing in step.timings:
        arrival = start + hop
        begin = arrival + timing.queue_us * scale
        end = begin + timing.compute_us * scale
        start = end + timing.handle_us * scale
        placed.append(PlacedStage(arrival, begin, end, start))
    return placed


class StepEvents:
    """Turns steps into events. Keeps one moment a track, whatever the number of steps."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._origin_s: float | None = None
        self._busy_until = [0.0] * (_SIDES * stages)
        self._wire_until = [0.0] * (stages + 1)
        self._lanes: list[float] = []  # when the last step of each ends

    def names(self) -> Iterator[Event]:
        """Events that name the tracks; to come first."""
        yield _name("process_name", LEADER, 0, "leader")
        yield _name("process_name", WIRE, 0, "wire")
        yield _name("process_name", STAGES, 0, "stages")
        for stage in range(self._stages):
            yield _name("thread_name", STAGES, _SIDES * stage, f"stage {stage}")
            yield _name("thread_name", STAGES, _SIDES * stage + 1, f"stage {stage} hands on")
        for hop in range(self._stages + 1):
            source = "leader" if hop == 0 else f"stage {hop - 1}"
            target = "leader" if hop == self._stages else f"stage {hop}"
            yield _name("thread_name", WIRE, hop, f"{source} to {target}")

    def of(self, step: TracedStep) -> Iterator[Event]:
        """The events of one step; steps come in the order in which they came back."""
        if self._origin_s is None:
            self._origin_s = step.began_s
        start = (step.began_s - self._origin_s) * 1e6
        end = max(start, (step.ended_s - self._origin_s) * 1e6)
        lane = self._lane(start, end)
        facts = {"step": step.number, "rows": step.rows, "tokens": step.tokens}
        yield _complete(LEADER, lane, f"step {step.number}", (start, end), facts)
        yield _flow("s", LEADER, lane, step.number, start)
        left = start
        for stage, placed in enumerate(place(step, self._origin_s)[: self._stages]):
            yield from self._hop(stage, step.number, left, placed.arrival)
            yield from self._stage(stage, step, placed)
            left = placed.gone
        if step.timings:
            yield from self._hop(self._stages, step.number, left, end)
        yield _flow("f", LEADER, lane, step.number, end)

    def _lane(self, start: float, end: float) -> int:
        """A line on which no other step lies at that time: intervals of a track may not cross."""
        free = next((lane for lane, until in enumerate(self._lanes) if until <= start), None)
        if free is None:
            free = min(len(self._lanes), LANES - 1)
            self._lanes[free:] = [0.0]
        self._lanes[free] = end
        return free

    def _hop(self, hop: int, number: int, start: float, end: float) -> Iterator[Event]:
        start = max(start, self._wire_until[hop])
        if start < end:
            self._wire_until[hop] = end
            yield _complete(WIRE, hop, f"step {number}", (start, end), {"step": number})

    def _stage(self, stage: int, step: TracedStep, placed: PlacedStage) -> Iterator[Event]:
        """Wait, queue and compute on one track, handing on (by another thread) on a second.

        Clipped where the estimates of two steps would cross; the arguments hold what was measured.
        """
        timing = step.timings[stage]
        facts = {"step": step.number, "rows": step.rows, "tokens": step.tokens}
        intervals = (
            ("wait", 0, placed.arrival - timing.wait_us, placed.arrival, timing.wait_us),
            ("queue", 0, placed.arrival, placed.begin, timing.queue_us),
            ("compute", 0, placed.begin, placed.end, timing.compute_us),
            ("handle", 1, placed.end, placed.gone, timing.handle_us),
        )
        for name, side, start, end, measured in intervals:
            track = _SIDES * stage + side
            start = max(start, self._busy_until[track])
            if start >= end:
                continue
            self._busy_until[track] = end
            yield _complete(STAGES, track, name, (start, end), facts | {"measured_us": measured})
            if name == "compute":
                yield _flow("t", STAGES, track, step.number, start)


class TraceFile:
    """A trace on the disk: a JSON array that is whole after every write, up to a limit.

    Called from one thread. Writes about a kilobyte a step; a disk that fails ends the trace, never
    the serving: see `ended`.
    """

    def __init__(self, path: Path, stages: int, most_bytes: int = 64 << 20) -> None:
        """A file that exists is replaced. Raises UsageError: it cannot be written."""
        self._events = StepEvents(stages)
        self._most_bytes = most_bytes
        self._size = 0
        self.ended: str | None = None  # why nothing more is written
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise UsageError(
                f"The trace cannot be written to {path} ({error.strerror}).", "Name another file."
            ) from error
        self._append(list(self._events.names()))

    def record(self, step: TracedStep) -> None:
        """One step that came back."""
        if self.ended is None:
            self._append(list(self._events.of(step)))

    def close(self) -> None:
        """Nothing is lost without it; more than once does no harm."""
        self.ended = self.ended or "closed"
        self._file.close()

    def _append(self, events: list[Event]) -> None:
        """All events of a step or none, in one write that begins on the closing bracket."""
        lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
        data = f"{',' if self._size else '['}\n{lines}\n]".encode()
        place = self._size and self._size - len(_CLOSING)
        if place + len(data) > self._most_bytes:
            self.ended = f"the limit of {self._most_bytes} bytes is reached"
            return
        try:
            self._file.seek(place)
            written = self._file.write(data)
        except OSError as error:
            self._undo(place, error.strerror or "the disk failed")
            return
        if written < len(data):
            self._undo(place, "the disk is full")
            return
        self._size = place + len(data)

    def _undo(self, place: int, reason: str) -> None:
        """Back to the last whole array, as far as the disk lets us."""
        self.ended = reason
        try:
            self._file.seek(place)
            self._file.write(_CLOSING)
            self._file.truncate()
        except OSError:
            pass  # viewers also read an array without its end


_CLOSING = b"\n]"


def _complete(
    group: int, track: int, name: str, span: tuple[float, float], facts: dict[str, int]
) -> Event:
    start, end = round(span[0], 1), round(span[1], 1)
    return {
        "ph": "X",
        "pid": group,
        "tid": track,
        "name": name,
        "ts": start,
        "dur": round(end - start, 1),
        "args": facts,
    }


def _flow(kind: str, group: int, track: int, number: int, moment: float) -> Event:
    """An arrow's start (s), passing (t) or finish (f), bound to the slice around it."""
    return {
        "ph": kind,
        "pid": group,
        "tid": track,
        "name": "step",
        "cat": "step",
        "id": number,
        "ts": round(moment, 1),
        "bp": "e",
    }


def _name(kind: str, group: int, track: int, name: str) -> Event:
    return {"ph": "M", "pid": group, "tid": track, "name": kind, "args": {"name": name}}
