"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from meshinfer.api.answer import ChoiceEnd, Ending, Text
from meshinfer.api.asker import asker
from meshinfer.api.body import read_object
from meshinfer.api.desk import AnswerDesk
from meshinfer.api.form import Document, Head, usage
from meshinfer.api.logprobs import chat_shape
from meshinfer.api.schema import parse_chat
from meshinfer.api.whole import WholeChoice


@dataclass(frozen=True, slots=True)
class ChatForm:
    """AnswerForm of a chat. `logprobs` is always there: .NET clients need the key."""

    head: Head
    has_logprobs: bool
    chunk_kind: str = "chat.completion.chunk"

    def opening(self, choice: int) -> Document:
        return _part(choice, {"role": "assistant", "content": ""})

    def more(self, piece: Text) -> Document:
        logprobs = chat_shape(piece.logprobs) if piece.logprobs else None
        return _part(piece.choice, {"content": piece.text}, logprobs)

    def last(self, end: ChoiceEnd) -> Document:
        return _part(end.choice, {}, reason=end.reason.value)

    def whole(self, choices: list[WholeChoice], ending: Ending) -> Document:
        documents = [self._whole(index, one) for index, one in enumerate(choices)]
        return self.head.document("chat.completion", documents) | {"usage": usage(ending)}

    def _whole(self, index: int, choice: WholeChoice) -> Document:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_shape(choice.logprobs) if self.has_logprobs else None,
            "finish_reason": choice.reason.value,
        }


def _part(
    choice: int, delta: Document, logprobs: Document | None = None, reason: str | None = None
) -> Document:
    return {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def chat_handler(desk: AnswerDesk) -> Handler:
    async def chat(request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        call = parse_chat(body, desk.served, desk.chance, asker(request))
        form = ChatForm(desk.head("chatcmpl", call), call.has_logprobs)
        return await desk.answer(request, call, form)

    return chat
