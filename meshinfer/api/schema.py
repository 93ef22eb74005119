"""Bodies of /v1/chat/completions and /v1/completions -> a Call, or InvalidRequest. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.api.asker import parse_user
from meshinfer.api.drawing import (
    Chance,
    chat_logprobs,
    parse_choices,
    parse_sampling,
    text_logprobs,
)
from meshinfer.api.fields import Fields, whole_text, wrong
from meshinfer.api.grammar import parse_grammar
from meshinfer.api.messages import parse_messages
from meshinfer.api.unsupported import refuse_unsupported
from meshinfer.core.ids import ModelId, RequestId
from meshinfer.core.request import (
    MOST_SPECULATIVE_TOKENS,
    ChatMessage,
    GenerationRequest,
    ServedModel,
)
from meshinfer.errors import ModelNotFound, NotReady

_MOST_STOPS = 4  # as OpenAI
_LONGEST_STOP = 1000  # characters; so much text is held back until it cannot be a stop string
_MOST_TOKENS = 2**31 - 1  # beyond every context; keeps the number within its wire type
_HIGHEST_PRIORITY = 1000
_COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions; chats run up to the context


@dataclass(frozen=True, slots=True)
class Call:
    """A valid request, and how its answer is wanted."""

    request: GenerationRequest
    stream: bool
    include_usage: bool  # only with `stream`; stream_options of a whole answer are ignored

    @property
    def has_logprobs(self) -> bool:
        return self.request.sampling.logprobs is not None


def parse_chat(
    body: dict[str, object], served: tuple[ServedModel, ...], chance: Chance, asker: str
) -> Call:
    """`asker` is who asks when the body names no user.

    Raises ModelNotFound, NotReady (nothing is served yet), InvalidRequest.
    """
    model = served_model(body.get("model"), served)
    fields = Fields(body)
    refuse_unsupported(body)
    messages = parse_messages(fields.get("messages"))
    limit = fields.integer("max_completion_tokens", 1)
    older_limit = fields.integer("max_tokens", 1)
    question = _Question(model, messages, None, limit or older_limit, chat_logprobs(fields))
    return _call(fields, chance, asker, question)


def parse_completion(
    body: dict[str, object], served: tuple[ServedModel, ...], chance: Chance, asker: str
) -> Call:
    """`asker` is who asks when the body names no user.

    Raises ModelNotFound, NotReady (nothing is served yet), InvalidRequest.
    """
    model = served_model(body.get("model"), served)
    fields = Fields(body)
    refuse_unsupported(body)
    prompt = _prompt(fields.get("prompt"))
    limit = fields.integer("max_tokens", 1)
    question = _Question(model, (), prompt, limit or _COMPLETION_TOKENS, text_logprobs(fields))
    return _call(fields, chance, asker, question)


def served_model(value: object, served: tuple[ServedModel, ...]) -> ModelId:
    """`value` when it is exactly the id of a served model; nothing is loaded for another one.

    Raises ModelNotFound that lists the served ids, NotReady while there is none.
    """
    if value is not None and not isinstance(value, str):
        raise wrong("model", "a string")
    if not served:
        raise NotReady("No model is served yet.", "Try again in a few seconds.")
    for one in served:
        if one.model == value:
            return one.model
    names = ", ".join(f"'{one.model}'" for one in served)
    if not value:
        raise ModelNotFound("The request names no model.", f"Set 'model' to one of: {names}.")
    raise ModelNotFound("This model is not served here.", f"Set 'model' to one of: {names}.")


@dataclass(frozen=True, slots=True)
class _Question:
    """What differs between the two endpoints."""

    model: ModelId
    messages: tuple[ChatMessage, ...]
    prompt: str | None
    limit: int | None  # tokens
    logprobs: int | None


def _call(fields: Fields, chance: Chance, default_user: str, question: _Question) -> Call:
    limit = question.limit
    request = GenerationRequest(
        id=RequestId(f"{chance(128):032x}"),
        model=question.model,
        messages=question.messages,
        prompt=question.prompt,
        sampling=parse_sampling(fields, chance, question.logprobs),
        max_tokens=None if limit is None else min(limit, _MOST_TOKENS),
        stop=_stops(fields.get("stop")),
        choices=parse_choices(fields),
        grammar=parse_grammar(fields),
        priority=fields.integer("priority", -_HIGHEST_PRIORITY, _HIGHEST_PRIORITY) or 0,
        user=parse_user(fields, default_user),
        speculative_tokens=fields.integer("speculative_tokens", 0, MOST_SPECULATIVE_TOKENS),
    )
    include_usage = fields.record("stream_options").flag("include_usage")
    return Call(request, fields.flag("stream"), include_usage)


def _prompt(value: object) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        raise wrong("prompt", "one string: several prompts and token ids are not supported")
    if not isinstance(value, str) or not value:
        raise wrong("prompt", "a string that is not empty")
    return whole_text("prompt", value)


def _stops(value: object) -> tuple[str, ...]:
    """null and [] keep the model's own end tokens and add nothing."""
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise wrong("stop", "a string or a list of strings")
    if len(stops) > _MOST_STOPS:
        raise wrong("stop", f"at most {_MOST_STOPS} strings")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= _LONGEST_STOP:
            raise wrong("stop", f"strings of 1 to {_LONGEST_STOP} characters")
        whole_text("stop", stop)
    return tuple(dict.fromkeys(stops))
