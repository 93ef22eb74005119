"""POST /v1/completions: text goes on, without a chat template."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from meshinfer.api.answer import Ending
from meshinfer.api.body import read_object
from meshinfer.api.desk import AnswerDesk
from meshinfer.api.form import Document, Head, usage
from meshinfer.api.schema import parse_completion
from meshinfer.core.request import FinishReason


@dataclass(frozen=True, slots=True)
class TextForm:
    """AnswerForm of a plain completion; chunks and whole answers have one shape."""

    head: Head
    chunk_kind: str = "text_completion"

    def opening(self) -> list[Document]:
        return []

    def more(self, text: str) -> list[Document]:
        return [_choice(text)]

    def last(self, reason: FinishReason) -> list[Document]:
        return [_choice("", reason)]

    def whole(self, text: str, ending: Ending) -> Document:
        document = self.head.document(self.chunk_kind, [_choice(text, ending.reason)])
        return document | {"usage": usage(ending)}


def _choice(text: str, reason: FinishReason | None = None) -> Document:
    finish_reason = None if reason is None else reason.value
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


def completion_handler(desk: AnswerDesk) -> Handler:
    async def complete(request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        call = parse_completion(body, desk.served, desk.chance)
        return await desk.answer(request, call, TextForm(desk.head("cmpl", call)))

    return complete
