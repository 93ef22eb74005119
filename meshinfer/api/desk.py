"""Where a valid call meets the door and becomes a response, streamed or whole."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from meshinfer.api.answer import pieces
from meshinfer.api.drawing import Chance
from meshinfer.api.form import AnswerForm, Head
from meshinfer.api.options import ApiOptions
from meshinfer.api.running import RunningAnswers
from meshinfer.api.schema import Call
from meshinfer.api.stream import AnswerStream
from meshinfer.api.traffic import Traffic, Watch
from meshinfer.api.whole import collect
from meshinfer.core.request import Door, ServedModel


class AnswerDesk:
    """Used by the handlers of chat and plain completions."""

    def __init__(
        self,
        door: Door,
        options: ApiOptions,
        running: RunningAnswers,
        traffic: Traffic,
        chance: Chance,
        clock: Callable[[], float],
    ) -> None:
        self._door = door
        self._options = options
        self._running = running
        self._traffic = traffic
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
        watch = Watch(self._traffic)
        found = pieces(self._door.generate(request), request.choices, prompt_field, watch)
        # watch is left first: a client that went counts no longer while the door lets go
        async with self._running.listen(found) as feed:
            with watch:
                if call.stream:
                    stream = AnswerStream(http, form, self._options, call.include_usage)
                    return await stream.run(feed, request.choices)
                return web.json_response(form.whole(*await collect(feed, request.choices)))
