"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from meshinfer.api.answer import Ending
from meshinfer.api.body import read_object
from meshinfer.api.desk import AnswerDesk
from meshinfer.api.form import Document, Head, usage
from meshinfer.api.schema import parse_chat
from meshinfer.core.request import FinishReason


@dataclass(frozen=True, slots=True)
class ChatForm:
    """AnswerForm of a chat. `logprobs` is always there: .NET clients need the key."""

    head: Head
    chunk_kind: str = "chat.completion.chunk"

    def opening(self) -> list[Document]:
        return [_choice({"role": "assistant", "content": ""})]

    def more(self, text: str) -> list[Document]:
        return [_choice({"content": text})]

    def last(self, reason: FinishReason) -> list[Document]:
        return [_choice({}, reason)]

    def whole(self, text: str, ending: Ending) -> Document:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": ending.reason.value,
        }
        return self.head.document("chat.completion", [choice]) | {"usage": usage(ending)}


def _choice(delta: Document, reason: FinishReason | None = None) -> Document:
    finish_reason = None if reason is None else reason.value
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def chat_handler(desk: AnswerDesk) -> Handler:
    async def chat(request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        call = parse_chat(body, desk.served, desk.chance)
        return await desk.answer(request, call, ChatForm(desk.head("chatcmpl", call)))

    return chat
