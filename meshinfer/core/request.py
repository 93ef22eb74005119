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
    min_p: float = 0.0  # least probability, as a share of the most likely token's
    repetition_penalty: float = 1.0  # over prompt and answer; divides positive logits (CTRL)
    presence_penalty: float = 0.0  # over the answer: subtracted once for a token that occurred
    frequency_penalty: float = 0.0  # over the answer: subtracted for every occurrence
    logprobs: int | None = None  # None: not wanted; else how many alternatives beside the token
    bias: tuple[tuple[int, float], ...] = ()  # (token, added to its logit)


GREEDY = Sampling(temperature=0.0)

MOST_SPECULATIVE_TOKENS = 32
"""That a request may ask for in every step."""

MOST_ALTERNATIVES = 20
"""As OpenAI's `top_logprobs`."""


class GrammarKind(StrEnum):
    JSON = "json"  # any JSON object; `text` is empty
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"  # a context-free grammar in Lark's notation


@dataclass(frozen=True, slots=True)
class Grammar:
    """What every answer must be: tokens that would leave it are never drawn."""

    kind: GrammarKind
    text: str


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
    choices: int = 1  # answers to one prompt; choice c draws with `sampling.seed + c`
    grammar: Grammar | None = None
    priority: int = 0  # lower goes first
    user: str = ""  # who asks, for fairness: requests of one name share its turn
    speculative_tokens: int | None = None  # drafts a step; None: as measurement advises, 0: none


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Started:
    """The request was admitted; nothing is computed before this."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A drawn token with its log-probability, and the most likely ones at its place.

    Of the distribution before temperature, penalties and cuts (as OpenAI, vLLM).
    """

    token: bytes
    logprob: float
    alternatives: tuple[tuple[bytes, float], ...]  # most likely first


@dataclass(frozen=True, slots=True)
class Delta:
    """More of one choice. `text` holds whole characters only, nothing of a stop string, and may be
    empty. `logprobs` are those of `tokens`, when they were asked for."""

    text: str
    tokens: tuple[int, ...]
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """One choice is complete."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seconds: float  # from admission to the last token
    first_token_s: float  # from arrival to the first token
    choice: int = 0
    cached_tokens: int = 0  # of the prompt, that no PC had to compute again


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
        """One Started, Deltas, one Finished a choice. `aclose()` cancels the request everywhere.

        Raises MeshInferError, before or after Started.
        """
        ...
