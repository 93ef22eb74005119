"""A door's events become the pieces that HTTP shows: choices followed to their ends, counted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from meshinfer.api.traffic import Watch
from meshinfer.core.request import Delta, Event, Finished, FinishReason, Started, TokenLogprob
from meshinfer.errors import InvalidRequest, MeshInferError


@dataclass(frozen=True, slots=True)
class Text:
    """More of one choice. `text` and `logprobs` are never both empty."""

    text: str
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """One choice is complete."""

    choice: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Ending:
    """Every choice is complete. The prompt counts once, however many choices it got."""

    prompt_tokens: int
    completion_tokens: int  # of all choices; what was computed, stop strings too
    cached_tokens: int  # of the prompt, that no PC had to compute again


Piece = Started | Text | ChoiceEnd | Ending


async def pieces(
    events: AsyncGenerator[Event, None], choices: int, prompt_field: str, watch: Watch
) -> AsyncGenerator[Piece, None]:
    """One Started, Texts of all choices as they come, one ChoiceEnd each, one Ending.

    `prompt_field` is what the client calls its prompt: the door does not know and says
    "messages". Raises what the door raises, and MeshInferError when it ends without every Finished.
    """
    finished: list[Finished] = []
    async with aclosing(events):
        try:
            async for event in events:
                match event:
                    case Delta():
                        watch.drawn(event.choice, len(event.tokens))
                        if event.text or event.logprobs:
                            yield Text(event.text, event.choice, event.logprobs)
                    case Started():
                        watch.prompt(event.prompt_tokens)
                        yield event
                    case Finished():
                        finished.append(event)
                        yield ChoiceEnd(event.choice, event.reason)
                        if len(finished) == choices:
                            ending = _ending(finished)
                            watch.complete(ending.cached_tokens)
                            yield ending
                            return
        except InvalidRequest as error:
            if error.param == "messages":
                error.param = prompt_field
            raise
    raise MeshInferError("The answer broke off.", "Ask again.")


def _ending(finished: list[Finished]) -> Ending:
    return Ending(
        prompt_tokens=finished[0].prompt_tokens,
        completion_tokens=sum(one.completion_tokens for one in finished),
        # all choices but the one that computed the prompt found it there
        cached_tokens=min(one.cached_tokens for one in finished),
    )
