"""A request for text, and what comes back. The API and the scheduler meet only here."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from meshinfer.core.ids import ModelId, RequestId


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `temperature` 0 is greedy and ignores the rest.

    The draw at position p depends on `seed` and p only, so a request can be continued elsewhere.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    seed: int = 0  # 0 <= seed < 2**64


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Either `messages` (a chat; the template is applied where the tokenizer is) or `prompt`."""

    id: RequestId
    model: ModelId
    messages: tuple[ChatMessage, ...]
    prompt: str | None
    sampling: Sampling
    max_tokens: int | None  # None: up to the context
    stop: tuple[str, ...] = ()


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Started:
    """The request was admitted; nothing is computed before this."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the answer. `text` holds whole characters only and may be empty."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seconds: float  # from admission to the last token
    first_token_s: float  # from arrival to the first token


Event = Started | Delta | Finished


@dataclass(frozen=True, slots=True)
class ServedModel:
    model: ModelId
    created: int  # seconds since 1970
    context_length: int
    is_ready: bool = True  # False: it may be named, and the answer says why it is not served yet


class Door(Protocol):
    """What the API needs of this PC, whether it leads or follows."""

    def models(self) -> tuple[ServedModel, ...]:
        """Models that a request may name."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """One Started, Deltas, one Finished. `aclose()` cancels the request everywhere.

        Raises MeshInferError, before or after Started.
        """
        ...
