"""The trace of steps: intervals lie where the round trip allows, and the file is always whole."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.step import StageTiming
from meshinfer.errors import UsageError
from meshinfer.serve.ring import StepOutcome
from meshinfer.serve.trace import STAGES, StepEvents, TracedStep, TraceFile, place

TIMING = StageTiming(wait_us=500, queue_us=100, compute_us=2000, handle_us=50)


def step(number: int = 0, began_s: float = 7.0, took_s: float = 0.01) -> TracedStep:
    return TracedStep(number, 2, 3, began_s, began_s + took_s, (TIMING, TIMING))


@st.composite
def rings(draw: st.DrawFn) -> tuple[int, list[TracedStep]]:
    """Steps that come back in order, some of them in flight together."""
    stages = draw(st.integers(0, 4))
    figure = st.integers(0, 5000)
    began, ended, steps = 100.0, 100.0, []
    for number in range(draw(st.integers(1, 8))):
        began += draw(figure) / 1e6
        ended = max(began, ended) + draw(figure) / 1e6
        timings = tuple(
            StageTiming(draw(figure), draw(figure), draw(figure), draw(figure))
            for _ in range(stages)
        )
        steps.append(TracedStep(number, 1, 1, began, ended, timings))
    return stages, steps


@given(rings())
def test_stages_lie_in_order_inside_the_round_trip(ring: tuple[int, list[TracedStep]]) -> None:
    for one in ring[1]:
        moments = [(one.began_s - 100.0) * 1e6]
        for placed in place(one, 100.0):
            moments += [placed.arrival, placed.begin, placed.end, placed.gone]
        moments.append((one.ended_s - 100.0) * 1e6)
        assert all(before <= after + 1e-3 for before, after in pairwise(moments))


@given(rings())
def test_no_interval_of_a_track_crosses_another(ring: tuple[int, list[TracedStep]]) -> None:
    stages, steps = ring
    events = StepEvents(stages)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in steps:
        for event in events.of(one):
            if event["ph"] == "X":
                assert event["dur"] >= 0
                span = (event["ts"], event["ts"] + event["dur"])
                tracks.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in tracks.values():
        for (_, end), (start, _) in pairwise(sorted(spans)):
            assert end <= start + 0.11  # figures are rounded to a tenth of a microsecond


def test_the_rest_of_the_round_trip_is_shared_by_the_hops() -> None:
    """10 ms, of which two stages account for 2150 us each: 1900 us a hop."""
    first, second = place(step(), 7.0)
    assert first.arrival == pytest.approx(1900, abs=0.1)
    assert first.gone == pytest.approx(4050, abs=0.1)
    assert second.arrival == pytest.approx(5950, abs=0.1)
    assert 10_000 - second.gone == pytest.approx(1900, abs=0.1)


def test_durations_are_told_as_measured_and_an_arrow_follows_the_step() -> None:
    found = list(StepEvents(2).of(step(5)))
    compute = [event for event in found if event["name"] == "compute"]
    assert [event["args"]["measured_us"] for event in compute] == [2000, 2000]
    assert [round(event["dur"]) for event in compute] == [2000, 2000]
    assert {event["pid"] for event in compute} == {STAGES}
    assert [event["ph"] for event in found if event.get("cat") == "step"] == ["s", "t", "t", "f"]
    assert {event["id"] for event in found if "id" in event} == {5}


def test_a_step_is_made_of_what_came_back() -> None:
    outcome = StepOutcome(
        step=4,
        drawn=(),
        error=None,
        timings=(TIMING,),
        sent_s=8.0,
        round_trip_us=30_000,
        rows=2,
        tokens=3,
        prompt_tokens=0,
    )
    made = TracedStep.of(outcome)
    assert (made.number, made.rows, made.tokens, made.began_s) == (4, 2, 3, 8.0)
    assert made.ended_s == pytest.approx(8.03)


def read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_the_file_is_whole_after_every_step_and_stops_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = TraceFile(path, stages=2, most_bytes=10_000)
    counts = [len(read(path))]
    for number in range(20):
        trace.record(step(number, 7.0 + number / 100))
        counts.append(len(read(path)))
        assert path.stat().st_size <= 10_000
    assert counts == sorted(counts)
    assert counts[1] > counts[0]
    assert trace.ended == "the limit of 10000 bytes is reached"
    assert counts[-1] == counts[-2]
    trace.close()
    trace.close()
    assert len(read(path)) == counts[-1]


def test_an_old_trace_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("x" * 100_000, encoding="utf-8")
    trace = TraceFile(path, stages=1)
    trace.close()
    trace.record(step())
    assert {event["ph"] for event in read(path)} == {"M"}
    assert trace.ended == "closed"


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Name another file"):
        TraceFile(tmp_path / "missing" / "trace.json", stages=1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full disk to try")
def test_a_full_disk_ends_the_trace_and_nothing_else() -> None:
    trace = TraceFile(Path("/dev/full"), stages=1)
    trace.record(step())
    trace.close()
    assert trace.ended == "No space left on device"
