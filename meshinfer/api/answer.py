"""A door's events become the pieces that HTTP shows: stop strings applied, tokens counted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from meshinfer.api.stop import StopFilter
from meshinfer.core.request import Delta, Event, Finished, FinishReason, Started
from meshinfer.errors import InvalidRequest, MeshInferError


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The answer is complete. `completion_tokens` counts what was computed, stop strings too."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int


Piece = Started | Text | Ending


async def pieces(
    events: AsyncGenerator[Event, None], stops: tuple[str, ...], prompt_field: str
) -> AsyncGenerator[Piece, None]:
    """One Started, Texts, one Ending. `events` is closed as soon as a stop string is complete.

    `prompt_field` is what the client calls its prompt: the door does not know and says
    "messages". Raises what the door raises, and MeshInferError when it ends without a Finished.
    """
    stop = StopFilter(stops)
    prompt_tokens = completion_tokens = 0
    async with aclosing(events):
        try:
            async for event in events:
                match event:
                    case Started():
                        prompt_tokens = event.prompt_tokens
                        yield event
                    case Delta():
                        completion_tokens += len(event.tokens)
                        safe, stopped = stop.feed(event.text)
                        if safe:
                            yield Text(safe)
                        if stopped:
                            yield Ending(FinishReason.STOP, prompt_tokens, completion_tokens)
                            return
                    case Finished():
                        rest = stop.finish()
                        if rest:
                            yield Text(rest)
                        yield Ending(event.reason, event.prompt_tokens, event.completion_tokens)
                        return
        except InvalidRequest as error:
            if error.param == "messages":
                error.param = prompt_field
            raise
    raise MeshInferError("The answer broke off.", "Ask again.")
