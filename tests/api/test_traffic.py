"""What the API counts: requests, answers under way, tokens and times. A11: queues fall at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from meshinfer.api.exposition import Distribution
from meshinfer.api.traffic import Traffic, Watch
from meshinfer.core.request import Delta, GenerationRequest, Started
from meshinfer.errors import Overloaded, PeerLost
from meshinfer.link.clock import ManualClock
from tests.api.scripted_door import PROMPT_TOKENS, ScriptedDoor, Step, doing, in_turns
from tests.api.served import CHAT, CHAT_PATH, Served, read_until, served

STREAM = CHAT | {"stream": True}


async def figures(api: Served) -> dict[str, float]:
    """Lines of /metrics without the prefix that all of the API's have."""
    lines = (await api.get("/metrics")).body.decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("meshinfer_api_")]
    return {name.removeprefix("meshinfer_api_"): float(value) for name, value in pairs}


def observed(value: Distribution) -> tuple[int, float]:
    return value.count, value.total


def test_the_times_of_an_answer() -> None:
    clock = ManualClock()
    traffic = Traffic(clock.now)
    with Watch(traffic) as watch:
        clock.advance(2)
        watch.prompt(7)
        assert (traffic.waiting, traffic.running) == (1, 0)
        watch.drawn(0, 0)  # a part of a character: no token yet
        assert (traffic.waiting, traffic.running) == (1, 0)
        watch.drawn(0, 1)
        assert (traffic.waiting, traffic.running) == (0, 1)
        clock.advance(1)
        watch.drawn(1, 1)  # the first of the second choice: no gap, and no first token either
        watch.drawn(0, 4)
        clock.advance(3)
        watch.drawn(1, 1)
        watch.complete(cached_tokens=5)
    assert (traffic.waiting, traffic.running) == (0, 0)
    assert observed(traffic.first_token.distribution()) == (1, 2.0)
    assert observed(traffic.token_gap.distribution()) == (5, 4.0)
    assert observed(traffic.answer.distribution()) == (1, 6.0)
    assert (traffic.prompt_tokens, traffic.cached_tokens, traffic.completion_tokens) == (7, 5, 7)
    assert traffic.outcomes == {"complete": 1, "failed": 0, "gone": 0}


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "failed"),  # a stream that told its client
        (PeerLost("c."), "failed"),
        (ConnectionResetError(), "gone"),
        (asyncio.CancelledError(), "gone"),
    ],
)
def test_answers_that_do_not_end_well(
    is_running: bool, error: BaseException | None, outcome: str
) -> None:
    traffic = Traffic(lambda: 0.0)
    watch = Watch(traffic)
    watch.__enter__()
    if is_running:
        watch.drawn(0, 1)
    watch.__exit__(None if error is None else type(error), error, None)
    watch.drawn(0, 1)  # what the door still gives is nobody's
    assert (traffic.waiting, traffic.running) == (0, 0)
    assert traffic.completion_tokens == is_running
    assert traffic.outcomes[outcome] == 1
    assert traffic.answer.distribution().count == 0


async def test_requests_are_counted_by_route_and_status() -> None:
    async with served(ScriptedDoor(doing(Overloaded("Too many.")))) as api:
        await api.post(CHAT_PATH, CHAT)
        await api.post(CHAT_PATH, STREAM)
        await api.post(CHAT_PATH, {})
        await api.get("/v1/models/smollm2-135m")
        for path in ("/secret-a", "/secret-b"):
            await api.get(path)
        found = await figures(api)
    requests = {name: count for name, count in found.items() if name.startswith("requests")}
    assert requests == {
        'requests_total{endpoint="/v1/chat/completions",status="404"}': 1,
        'requests_total{endpoint="/v1/chat/completions",status="429"}': 2,
        'requests_total{endpoint="/v1/models/{id}",status="200"}': 1,
        'requests_total{endpoint="other",status="404"}': 2,
    }
    assert found['answers_total{outcome="failed"}'] == 2


@pytest.mark.parametrize("is_stream", [False, True])
async def test_tokens_and_times_over_http(is_stream: bool) -> None:
    clock = ManualClock()

    def script(_: GenerationRequest) -> Iterator[Step]:
        for step in in_turns(("a", "b", "c"), ("x",), cached=(4, 6)):
            clock.advance(1)
            yield step

    async with served(ScriptedDoor(script), timer=clock.now) as api:
        await api.post(CHAT_PATH, CHAT | {"n": 2, "stream": is_stream})
        found = await figures(api)
    assert found["prompt_tokens_total"] == PROMPT_TOKENS
    assert found["cached_tokens_total"] == 4
    assert found["completion_tokens_total"] == 4
    # Started, a, x, b, c, two ends: a second each
    assert found["first_token_seconds_sum"] == 2
    assert found["token_gap_seconds_sum"] == 3
    assert found["token_gap_seconds_count"] == 2
    assert found["answer_seconds_sum"] == 7
    assert found['answer_seconds_bucket{le="10"}'] == 1
    assert found['answers_total{outcome="complete"}'] == 1


async def test_an_answer_that_breaks_in_the_middle_has_failed() -> None:
    async with served(ScriptedDoor(doing(Started(3), Delta("a", (1,)), PeerLost("c.")))) as api:
        await api.events(CHAT_PATH, CHAT)
        found = await figures(api)
    assert found['answers_total{outcome="failed"}'] == 1
    assert found["answers_running"] == found["answers_waiting"] == 0


async def test_a_queue_falls_as_soon_as_its_clients_go() -> None:
    hold = asyncio.Event()

    class Slow(ScriptedDoor):
        """Lets go of a request only when `hold` is set."""

        async def _tell(self) -> None:
            if self.released:
                await asyncio.shield(hold.wait())
            await super()._tell()

    door = Slow(doing(Started(3), asyncio.Event()))
    async with served(door) as api:
        async with api.raw_post(CHAT_PATH, CHAT):
            async with api.raw_post(CHAT_PATH, STREAM) as (reader, _):
                await door.wait_asked(2)
                await read_until(reader, b"assistant")
                assert (await figures(api))["answers_waiting"] == 2
            async with asyncio.timeout(1):
                while (await figures(api))["answers_waiting"] == 2:
                    pass
            found = await figures(api)
            assert found["answers_waiting"] == 1
            assert found['answers_total{outcome="gone"}'] == 1
        hold.set()
