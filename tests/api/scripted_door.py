"""A Door whose answers are written down: the API's tests need no model and no fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable

from meshinfer.core.ids import ModelId
from meshinfer.core.request import (
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    ServedModel,
    Started,
    TokenLogprob,
)

MODEL = ServedModel(ModelId("smollm2-135m"), created=1_700_000_000, context_length=2048)
PROMPT_TOKENS = 7

Step = Event | Exception | asyncio.Event
Script = Callable[[GenerationRequest], Iterable[Step]]


class ScriptedDoor:
    """Runs `script` for every request: gives events, raises errors, waits for asyncio.Events.

    `asked` and `released` count requests that came and that ended, in whatever way.
    """

    def __init__(self, script: Script, models: tuple[ServedModel, ...] = (MODEL,)) -> None:
        self._script = script
        self._models = models
        self._changed = asyncio.Condition()
        self.requests: list[GenerationRequest] = []
        self.released = 0

    def models(self) -> tuple[ServedModel, ...]:
        return self._models

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        await self._tell()
        try:
            for step in self._script(request):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    yield step
        finally:
            self.released += 1
            await self._tell()

    async def wait_asked(self, count: int = 1) -> None:
        """Until `count` requests came; fails after a second (the bound of case A09)."""
        await self._wait(lambda: len(self.requests) >= count)

    async def wait_released(self, count: int = 1) -> None:
        """Until `count` requests ended; fails after a second."""
        await self._wait(lambda: self.released >= count)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(1), self._changed:
            await self._changed.wait_for(condition)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def steps(*texts: str, reason: FinishReason = FinishReason.STOP) -> list[Step]:
    """A whole answer with one token for each text."""
    deltas = [Delta(text, (number,)) for number, text in enumerate(texts)]
    end = Finished(reason, PROMPT_TOKENS, len(texts), seconds=1.0, first_token_s=0.1)
    return [Started(PROMPT_TOKENS), *deltas, end]


def in_turns(*choices: tuple[str, ...], cached: tuple[int, ...] = ()) -> list[Step]:
    """A whole answer with several choices, one token of each in turn. The last ends first."""
    found: list[Step] = [Started(PROMPT_TOKENS)]
    for place in range(max(map(len, choices), default=0)):
        for number, texts in enumerate(choices):
            if place < len(texts):
                found.append(Delta(texts[place], (place,), number))
    for number in reversed(range(len(choices))):
        reason = FinishReason.LENGTH if number % 2 else FinishReason.STOP
        cached_tokens = cached[number] if cached else 0
        end = Finished(reason, PROMPT_TOKENS, len(choices[number]), 1.0, 0.1, number, cached_tokens)
        found.append(end)
    return found


def drawing(*tokens: TokenLogprob) -> Script:
    """An answer of one choice whose tokens come with their log-probabilities."""
    deltas = [Delta(one.token.decode("utf-8", "ignore"), (1,), 0, (one,)) for one in tokens]
    end = Finished(FinishReason.STOP, PROMPT_TOKENS, len(tokens), seconds=1.0, first_token_s=0.1)
    return lambda _: [Started(PROMPT_TOKENS), *deltas, end]


def saying(*texts: str, reason: FinishReason = FinishReason.STOP) -> Script:
    return lambda _: steps(*texts, reason=reason)


def doing(*script: Step) -> Script:
    return lambda _: script


def up_to_limit(request: GenerationRequest) -> Iterable[Step]:
    """A model that never stops by itself."""
    assert request.max_tokens is not None
    return steps(*["x"] * request.max_tokens, reason=FinishReason.LENGTH)
