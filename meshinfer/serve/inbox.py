"""The door of a serving plan: a request goes in, its events come out.

Encodes the prompt, refuses what cannot fit before any PC computes, hands a Sequence for each choice
to the scheduler, and publishes what was drawn. One Inbox lives as long as one plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from meshinfer.core.request import (
    ChatMessage,
    Event,
    Finished,
    GenerationRequest,
    Grammar,
    Started,
)
from meshinfer.engine.detokenizer import Detokenizer
from meshinfer.engine.grammar import Constraint
from meshinfer.errors import ContextTooLong, InvalidRequest, MeshInferError, Overloaded
from meshinfer.serve.answer import Answer
from meshinfer.serve.scheduler import Advance, Scheduler
from meshinfer.serve.sequence import Sequence, SequenceState
from meshinfer.serve.stop_filter import StopFilter

_WEIGHT = 0.1  # of the newest answer in the mean of how long they take


class Encoder(Protocol):
    """Text to token ids, away from the event loop."""

    async def encode_chat(self, messages: tuple[ChatMessage, ...]) -> list[int]: ...

    async def encode_text(self, prompt: str) -> list[int]: ...

    async def constrain(self, grammar: Grammar) -> Constraint: ...


@dataclass(frozen=True, slots=True)
class Language:
    """What the inbox knows of the model's text."""

    vocabulary: Mapping[int, bytes]
    stop_tokens: Collection[int]
    special_tokens: Collection[int]
    context_length: int


@dataclass(slots=True)
class _Asked:
    """One request's way back."""

    arrived_s: float
    answers: list[Answer] = field(default_factory=list)
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
        self._asked: dict[int, tuple[_Asked, Answer]] = {}  # by id() of the sequence
        self._answer_s = 0.0  # mean of how long an answer takes
        self._closed: MeshInferError | None = None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Started, Deltas, one Finished a choice. Closing the iterator cancels the request.

        Raises ContextTooLong, InvalidRequest, Overloaded; PeerLost or StageFailed when the plan
        ends under it.
        """
        arrived = self._clock()
        tokens = await self._encode(request)
        constraint = None
        if request.grammar is not None:
            constraint = await self._encoder.constrain(request.grammar)
        asked = self._open(request, tokens, constraint, arrived)
        try:
            yield Started(len(tokens))
            finished = 0
            while finished < request.choices:
                event = await asked.events.get()
                if isinstance(event, MeshInferError):
                    raise event
                yield event
                finished += isinstance(event, Finished)
        finally:
            self._forget(asked)

    def publish(self, advances: list[Advance]) -> None:
        """Turn drawn tokens into events."""
        for advance in advances:
            found = self._asked.get(id(advance.sequence))
            if found is not None:
                self._tell(*found, advance)

    def fail(self, sequences: Collection[Sequence], error: MeshInferError) -> None:
        """End the requests of these with an error; the others go on."""
        for sequence in sequences:
            found = self._asked.get(id(sequence))
            self._scheduler.end(sequence)
            if found is not None:
                found[0].events.put_nowait(error)

    def close(self, error: MeshInferError) -> None:
        """End every request with `error` and refuse new ones with it. Idempotent."""
        self._closed = self._closed or error
        self.fail([answer.sequence for _, answer in self._asked.values()], error)

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
        self._check_bias(request)
        return tokens

    def _check_bias(self, request: GenerationRequest) -> None:
        for token, _ in request.sampling.bias:
            if token not in self._language.vocabulary:
                raise InvalidRequest(
                    f"This model has no token {token}.", "Leave it out.", param="logit_bias"
                )

    def _open(
        self,
        request: GenerationRequest,
        tokens: list[int],
        constraint: Constraint | None,
        arrived: float,
    ) -> _Asked:
        if self._closed is not None:
            raise self._closed
        sequences = [
            self._sequence(request, tokens, constraint, choice) for choice in range(request.choices)
        ]
        try:
            self._scheduler.admit(*sequences)
        except Overloaded as error:
            error.retry_after_s = self._room_in_s()
            raise
        asked, admitted = _Asked(arrived), self._clock()
        for choice, sequence in enumerate(sequences):
            answer = Answer(
                choice=choice,
                sequence=sequence,
                text=self._detokenizer.stream(),
                stops=StopFilter(request.stop),
                vocabulary=self._language.vocabulary,
                admitted_s=admitted,
            )
            asked.answers.append(answer)
            self._asked[id(sequence)] = (asked, answer)
        self._wake()
        return asked

    def _sequence(
        self,
        request: GenerationRequest,
        tokens: list[int],
        constraint: Constraint | None,
        choice: int,
    ) -> Sequence:
        room = self._language.context_length - len(tokens)
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        sampling = request.sampling
        if choice:
            sampling = replace(sampling, seed=(sampling.seed + choice) % 2**64)
        return Sequence(
            tokens=list(tokens),
            prompt_length=len(tokens),
            sampling=sampling,
            limit=limit,
            stop_tokens=self._language.stop_tokens,
            priority=request.priority,
            user=request.user,
            constraint=constraint.copy() if constraint is not None else None,
            drafts=request.speculative_tokens,
        )

    def _room_in_s(self) -> float:
        """When the queue will probably have a place: as long as running answers take on average,
        shared by those that run."""
        return max(1.0, self._answer_s / max(1, self._scheduler.running))

    def _forget(self, asked: _Asked) -> None:
        for answer in asked.answers:
            self._scheduler.end(answer.sequence)
            self._asked.pop(id(answer.sequence), None)
        self._wake()

    def _tell(self, asked: _Asked, answer: Answer, advance: Advance) -> None:
        sequence = advance.sequence
        if answer.is_told:
            return
        now = self._clock()
        answer.first_token_s = answer.first_token_s or now
        asked.events.put_nowait(answer.take(advance.drawn))
        if sequence.finish is None:
            return
        if sequence.state is not SequenceState.FINISHED:  # by a stop string
            self._scheduler.end(sequence)
        answer.is_told = True
        seconds = now - answer.admitted_s
        self._answer_s += (seconds - self._answer_s) * (_WEIGHT if self._answer_s else 1.0)
        asked.events.put_nowait(
            Finished(
                reason=sequence.finish,
                prompt_tokens=sequence.prompt_length,
                completion_tokens=sequence.drawn,
                seconds=seconds,
                first_token_s=answer.first_token_s - asked.arrived_s,
                choice=answer.choice,
                cached_tokens=sequence.cached,
            )
        )
