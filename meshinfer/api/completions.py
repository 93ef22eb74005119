"""POST /v1/completions: text goes on, without a chat template."""

from __future__ import annotations

from collections import Counter

from aiohttp import web
from aiohttp.typedefs import Handler

from meshinfer.api.answer import ChoiceEnd, Ending, Text
from meshinfer.api.asker import asker
from meshinfer.api.body import read_object
from meshinfer.api.desk import AnswerDesk
from meshinfer.api.form import Document, Head, usage
from meshinfer.api.logprobs import begun, text_shape
from meshinfer.api.schema import parse_completion
from meshinfer.api.whole import WholeChoice


class TextForm:
    """AnswerForm of a plain completion; chunks and whole answers have one shape."""

    chunk_kind = "text_completion"

    def __init__(self, head: Head, has_logprobs: bool) -> None:
        self.head = head
        self._has_logprobs = has_logprobs
        self._characters: Counter[int] = Counter()  # begun by the tokens of each choice so far

    def opening(self, choice: int) -> None:
        return None

    def more(self, piece: Text) -> Document:
        if not piece.logprobs:
            return _choice(piece.choice, piece.text)
        logprobs = text_shape(piece.logprobs, self._characters[piece.choice])
        self._characters[piece.choice] += sum(begun(one.token) for one in piece.logprobs)
        return _choice(piece.choice, piece.text, logprobs)

    def last(self, end: ChoiceEnd) -> Document:
        return _choice(end.choice, "", reason=end.reason.value)

    def whole(self, choices: list[WholeChoice], ending: Ending) -> Document:
        documents = [self._whole(index, one) for index, one in enumerate(choices)]
        return self.head.document(self.chunk_kind, documents) | {"usage": usage(ending)}

    def _whole(self, index: int, choice: WholeChoice) -> Document:
        logprobs = text_shape(choice.logprobs, 0) if self._has_logprobs else None
        return _choice(index, choice.text, logprobs, choice.reason.value)


def _choice(
    index: int, text: str, logprobs: Document | None = None, reason: str | None = None
) -> Document:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def completion_handler(desk: AnswerDesk) -> Handler:
    async def complete(request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        call = parse_completion(body, desk.served, desk.chance, asker(request))
        form = TextForm(desk.head("cmpl", call), call.has_logprobs)
        return await desk.answer(request, call, form)

    return complete
