"""One streamed answer: pieces in, server-sent events out."""

from __future__ import annotations

from aiohttp import web

from meshinfer.api.answer import ChoiceEnd, Ending, Text
from meshinfer.api.errors import problem_of
from meshinfer.api.feed import AnswerFeed
from meshinfer.api.form import AnswerForm, Document, usage
from meshinfer.api.options import ApiOptions
from meshinfer.api.sse import EventStream
from meshinfer.core.request import Started
from meshinfer.errors import MeshInferError


class AnswerStream:
    """Writes the answer of `feed` as chunks of `form`."""

    def __init__(
        self, request: web.Request, form: AnswerForm, options: ApiOptions, include_usage: bool
    ) -> None:
        self._out = EventStream(request, options.stall_s)
        self._form = form
        self._options = options
        self._include_usage = include_usage

    async def run(self, feed: AnswerFeed, choices: int) -> web.StreamResponse:
        """The response, complete. Raises the door's error while nothing has been sent."""
        try:
            await self._copy(feed, choices)
        except MeshInferError as error:
            if not self._out.has_begun:
                raise
            await self._out.fail(problem_of(error).document())
        return self._out.response

    async def _copy(self, feed: AnswerFeed, choices: int) -> None:
        """Every piece writes something, so silence of the feed is silence on the wire."""
        patience_s = self._options.header_patience_s
        while True:
            try:
                piece = await feed.next(patience_s)
            except TimeoutError:
                await self._out.comment("waiting")
            else:
                match piece:
                    case Started():
                        await self._open(choices)
                    case Text():
                        await self._chunk(self._form.more(piece))
                    case ChoiceEnd():
                        await self._chunk(self._form.last(piece))
                    case Ending():
                        await self._end(piece)
                        return
            patience_s = self._options.keep_alive_s

    async def _open(self, choices: int) -> None:
        openings = [self._form.opening(choice) for choice in range(choices)]
        if None in openings:
            await self._out.comment("started")
        for one in openings:
            if one is not None:
                await self._chunk(one)

    async def _end(self, ending: Ending) -> None:
        if self._include_usage:
            await self._out.data(self._document([]) | {"usage": usage(ending)})
        await self._out.done()

    async def _chunk(self, choice: Document) -> None:
        await self._out.data(self._document([choice]))

    def _document(self, choices: list[Document]) -> Document:
        document = self._form.head.document(self._form.chunk_kind, choices)
        # Unasked, the key is left out: some clients take its presence for the last chunk.
        return document | {"usage": None} if self._include_usage else document
