"""Where a valid call meets the door and becomes a response, streamed or whole."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from meshinfer.api.answer import Ending, Text, pieces
from meshinfer.api.feed import AnswerFeed
from meshinfer.api.form import AnswerForm, Head
from meshinfer.api.options import ApiOptions
from meshinfer.api.running import RunningAnswers
from meshinfer.api.schema import Call, Chance
from meshinfer.api.stream import AnswerStream
from meshinfer.core.request import Door, ServedModel


class AnswerDesk:
    """Used by the handlers of chat and plain completions."""

    def __init__(
        self,
        door: Door,
        options: ApiOptions,
        running: RunningAnswers,
        chance: Chance,
        clock: Callable[[], float],
    ) -> None:
        self._door = door
        self._options = options
        self._running = running
        self._clock = clock
        self.chance = chance

    @property
    def served(self) -> tuple[ServedModel, ...]:
        return self._door.models()

    def head(self, prefix: str, call: Call) -> Head:
        request = call.request
        return Head(f"{prefix}-{request.id}", int(self._clock()), request.model)

    async def answer(self, http: web.Request, call: Call, form: AnswerForm) -> web.StreamResponse:
        """Asks the door. When the client goes, aiohttp cancels this call (handler_cancellation)
        and leaving the feed cancels the request, queued or running.

        Raises what the door raises while nothing has been sent.
        """
        request = call.request
        prompt_field = "messages" if request.prompt is None else "prompt"
        events = self._door.generate(request)
        async with self._running.listen(pieces(events, request.stop, prompt_field)) as feed:
            if call.stream:
                stream = AnswerStream(http, form, self._options, call.include_usage)
                return await stream.run(feed)
            return web.json_response(form.whole(*await _collect(feed)))


async def _collect(feed: AnswerFeed) -> tuple[str, Ending]:
    texts: list[str] = []
    while True:
        piece = await feed.next(None)
        match piece:
            case Text():
                texts.append(piece.text)
            case Ending():
                return "".join(texts), piece
