"""What passes through the API, in figures: requests, answers under way, tokens and their times."""

from __future__ import annotations

from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler

from meshinfer.api.exposition import Distribution, Labels, Sample, SampleKind
from meshinfer.api.histogram import Histogram

# Seconds. 64 tokens of prompt take half a second on one core, 32000 take minutes.
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
# From a small model on one PC to a ring over a slow network: 10 ms to seconds.
_TOKEN_GAP_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_ANSWER_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_CLIENT_GONE = 499  # nginx's number for it; no client ever sees it


class Traffic:
    """Metrics of one API server. `timer` is seconds from any start, never backwards."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self.timer = timer
        self.waiting = 0
        self.running = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.outcomes = Counter[str](complete=0, failed=0, gone=0)
        self.first_token = Histogram(_FIRST_TOKEN_S)
        self.token_gap = Histogram(_TOKEN_GAP_S)
        self.answer = Histogram(_ANSWER_S)
        self._requests: Counter[tuple[str, int]] = Counter()

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts every request with the status that it got; outside of what makes errors one."""
        status = _CLIENT_GONE
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            self._requests[_endpoint(request), status] += 1

    def samples(self) -> Iterable[Sample]:
        for (endpoint, status), count in sorted(self._requests.items()):
            labels = (("endpoint", endpoint), ("status", str(status)))
            yield _counter("requests", "Requests by their last status.", count, labels)
        for outcome, count in self.outcomes.items():
            how = (("outcome", outcome),)
            yield _counter("answers", "Answers that ended, by how.", count, how)
        yield _gauge("answers_waiting", "Answers without a token yet.", self.waiting)
        yield _gauge("answers_running", "Answers that are being given.", self.running)
        yield _counter("prompt_tokens", "Tokens of admitted prompts.", self.prompt_tokens)
        yield _counter(
            "cached_tokens", "Prompt tokens that were not computed again.", self.cached_tokens
        )
        yield _counter("completion_tokens", "Tokens that were drawn.", self.completion_tokens)
        yield _seconds("first_token", "From request to first token.", self.first_token)
        yield _seconds("token_gap", "Between two tokens of a choice.", self.token_gap)
        yield _seconds("answer", "From request to the end of a complete answer.", self.answer)


class Watch:
    """Follows one answer from its request on; use as a context for as long as a client waits.

    The gauges fall the moment the context is left, whatever the door still does for the answer.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._asked_s = traffic.timer()
        self._latest_s: dict[int, float] = {}  # last token of each choice
        self._is_open = False
        self._is_complete = False

    def __enter__(self) -> Self:
        self._is_open = True
        self._traffic.waiting += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_open = False
        if self._latest_s:
            self._traffic.running -= 1
        else:
            self._traffic.waiting -= 1
        self._traffic.outcomes[self._outcome(kind)] += 1

    def prompt(self, tokens: int) -> None:
        """The request was admitted."""
        self._traffic.prompt_tokens += tokens

    def drawn(self, choice: int, tokens: int) -> None:
        """`choice` got so many tokens at once."""
        if not tokens or not self._is_open:
            return
        traffic, now = self._traffic, self._traffic.timer()
        traffic.completion_tokens += tokens
        before = self._latest_s.get(choice)
        if before is not None:
            traffic.token_gap.observe((now - before) / tokens, tokens)
        elif not self._latest_s:
            traffic.first_token.observe(now - self._asked_s)
            traffic.waiting -= 1
            traffic.running += 1
        self._latest_s[choice] = now

    def complete(self, cached_tokens: int) -> None:
        """Every choice is there."""
        self._is_complete = True
        self._traffic.cached_tokens += cached_tokens
        self._traffic.answer.observe(self._traffic.timer() - self._asked_s)

    def _outcome(self, kind: type[BaseException] | None) -> str:
        if self._is_complete:
            return "complete"
        # aiohttp cancels the handler of a client that is gone; a write to it fails
        is_gone = kind is not None and issubclass(kind, CancelledError | ConnectionError)
        return "gone" if is_gone else "failed"


def _endpoint(request: web.Request) -> str:
    """The route, never the path itself: strangers would make endless labels with it."""
    resource = request.match_info.route.resource
    return "other" if resource is None else resource.canonical


def _counter(name: str, words: str, value: int, labels: Labels = ()) -> Sample:
    return Sample(f"meshinfer_api_{name}_total", SampleKind.COUNTER, words, labels, value)


def _gauge(name: str, words: str, value: int) -> Sample:
    return Sample(f"meshinfer_api_{name}", SampleKind.GAUGE, words, (), value)


def _seconds(name: str, words: str, histogram: Histogram) -> Sample:
    value: Distribution = histogram.distribution()
    return Sample(f"meshinfer_api_{name}_seconds", SampleKind.HISTOGRAM, words, (), value)
