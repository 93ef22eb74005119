"""The door of a serving plan: a request goes in, its events come out.

Encodes the prompt, refuses what cannot fit before any PC computes, hands a Sequence to the
scheduler, and turns drawn tokens into whole characters. One Inbox lives as long as one plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from meshinfer.core.request import (
    ChatMessage,
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Started,
)
from meshinfer.engine.detokenizer import Detokenizer, TextStream
from meshinfer.errors import ContextTooLong, InvalidRequest, MeshInferError
from meshinfer.serve.scheduler import Advance, Scheduler
from meshinfer.serve.sequence import Sequence


class Encoder(Protocol):
    """Text to token ids, away from the event loop."""

    async def encode_chat(self, messages: tuple[ChatMessage, ...]) -> list[int]: ...

    async def encode_text(self, prompt: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Language:
    """What the inbox knows of the model's text."""

    vocabulary: Mapping[int, bytes]
    stop_tokens: Collection[int]
    special_tokens: Collection[int]
    context_length: int


@dataclass(slots=True)
class _Answer:
    """One request's way back."""

    sequence: Sequence
    text: TextStream
    arrived_s: float
    admitted_s: float
    first_token_s: float = 0.0
    events: asyncio.Queue[Event | MeshInferError] = field(default_factory=asyncio.Queue)


class Inbox:
    """`wake` tells the decode loop that there is work; `clock` is monotonic seconds."""

    def __init__(
        self,
        encoder: Encoder,
        language: Language,
        scheduler: Scheduler,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._encoder = encoder
        self._language = language
        self._detokenizer = Detokenizer(language.vocabulary, language.special_tokens)
        self._scheduler = scheduler
        self._wake = wake
        self._clock = clock
        self._answers: dict[int, _Answer] = {}  # by id() of the sequence: its key may change
        self._closed: MeshInferError | None = None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Started, Deltas, Finished. Closing the iterator cancels the request.

        Raises ContextTooLong, InvalidRequest, Overloaded; PeerLost or StageFailed when the plan
        ends under it.
        """
        arrived = self._clock()
        tokens = await self._encode(request)
        answer = self._open(request, tokens, arrived)
        try:
            yield Started(answer.sequence.prompt_length)
            while True:
                event = await answer.events.get()
                if isinstance(event, MeshInferError):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self._forget(answer)

    def publish(self, advances: list[Advance]) -> None:
        """Turn drawn tokens into events."""
        for advance in advances:
            answer = self._answers.get(id(advance.sequence))
            if answer is not None:
                self._tell(answer, advance)

    def fail(self, sequences: Collection[Sequence], error: MeshInferError) -> None:
        """End these requests with an error; the others go on."""
        for sequence in sequences:
            answer = self._answers.get(id(sequence))
            self._scheduler.end(sequence)
            if answer is not None:
                answer.events.put_nowait(error)

    def close(self, error: MeshInferError) -> None:
        """End every request with `error` and refuse new ones with it. Idempotent."""
        self._closed = self._closed or error
        self.fail([answer.sequence for answer in self._answers.values()], error)

    async def _encode(self, request: GenerationRequest) -> list[int]:
        if request.prompt is not None:
            tokens = await self._encoder.encode_text(request.prompt)
        else:
            tokens = await self._encoder.encode_chat(request.messages)
        if not tokens:
            raise InvalidRequest("The prompt is empty.", "Write something.", param="messages")
        context = self._language.context_length
        if len(tokens) >= context:
            raise ContextTooLong(
                f"The prompt has {len(tokens)} tokens, the context of this model here "
                f"holds {context}.",
                "Shorten the conversation.",
            )
        return tokens

    def _open(self, request: GenerationRequest, tokens: list[int], arrived: float) -> _Answer:
        if self._closed is not None:
            raise self._closed
        room = self._language.context_length - len(tokens)
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        sequence = Sequence(
            key=self._scheduler.new_key(),
            tokens=tokens,
            prompt_length=len(tokens),
            sampling=request.sampling,
            limit=limit,
            stop_tokens=self._language.stop_tokens,
        )
        self._scheduler.admit(sequence)
        answer = _Answer(sequence, self._detokenizer.stream(), arrived, self._clock())
        self._answers[id(sequence)] = answer
        self._wake()
        return answer

    def _forget(self, answer: _Answer) -> None:
        self._scheduler.end(answer.sequence)
        self._answers.pop(id(answer.sequence), None)
        self._wake()

    def _tell(self, answer: _Answer, advance: Advance) -> None:
        sequence = advance.sequence
        now = self._clock()
        answer.first_token_s = answer.first_token_s or now
        stopped = sequence.finish is FinishReason.STOP
        spoken = advance.tokens[:-1] if stopped else advance.tokens
        text = "".join(answer.text.feed(token) for token in spoken)
        if sequence.finish is not None:
            text += answer.text.finish()
        answer.events.put_nowait(Delta(text, advance.tokens))
        if sequence.finish is None:
            return
        answer.events.put_nowait(
            Finished(
                reason=sequence.finish,
                prompt_tokens=sequence.prompt_length,
                completion_tokens=sequence.drawn,
                seconds=now - answer.admitted_s,
                first_token_s=answer.first_token_s - answer.arrived_s,
            )
        )
