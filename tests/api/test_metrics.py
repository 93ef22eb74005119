"""GET /metrics: what it is made of. The guard's tests have its key."""

from __future__ import annotations

from collections.abc import Iterable

from meshinfer.api.exposition import Sample, SampleKind
from tests.api.scripted_door import ScriptedDoor, saying
from tests.api.served import served


class Node:
    def __init__(self, *samples: Sample) -> None:
        self._samples = samples

    def samples(self) -> Iterable[Sample]:
        return self._samples


async def test_the_figures_of_the_pc_stand_beside_those_of_the_api() -> None:
    node = Node(Sample("meshinfer_ring_steps_total", SampleKind.COUNTER, "Steps.", (), 12))
    async with served(ScriptedDoor(saying("ok")), metrics=node) as api:
        reply = await api.get("/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = reply.body.decode().splitlines()
    assert "meshinfer_ring_steps_total 12" in lines
    assert "meshinfer_api_answers_waiting 0" in lines
    assert sum(line.startswith("# TYPE meshinfer_ring_steps_total ") for line in lines) == 1


async def test_a_pc_without_figures_shows_the_api_only() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        lines = (await api.get("/metrics")).body.decode().splitlines()
    assert all(
        line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith("meshinfer_api_")
        for line in lines
    )


async def test_a_broken_source_breaks_nothing_else() -> None:
    node = Node(Sample("not a name", SampleKind.GAUGE, "", (), 1))
    async with served(ScriptedDoor(saying("ok")), metrics=node) as api:
        assert (await api.get("/metrics")).error["code"] == "internal_error"
        assert (await api.get("/health")).status == 200
