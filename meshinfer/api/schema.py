"""Bodies of /v1/chat/completions and /v1/completions -> a Call, or InvalidRequest. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshinfer.api.fields import Fields, whole_text, wrong
from meshinfer.api.messages import parse_messages
from meshinfer.api.unsupported import refuse_unsupported
from meshinfer.core.ids import ModelId, RequestId
from meshinfer.core.request import ChatMessage, GenerationRequest, Sampling, ServedModel
from meshinfer.errors import ModelNotFound, NotReady

Chance = Callable[[int], int]
"""Random integer of that many bits: `secrets.randbits`, or a fixed one in tests."""

_MOST_STOPS = 4  # as OpenAI
_LONGEST_STOP = 1000  # characters; so much text is held back until it cannot be a stop string
_MOST_TOKENS = 2**31 - 1  # beyond every context; keeps the number within its wire type
_COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions; chats run up to the context


@dataclass(frozen=True, slots=True)
class Call:
    """A valid request, and how its answer is wanted."""

    request: GenerationRequest
    stream: bool
    include_usage: bool  # only with `stream`; stream_options of a whole answer are ignored


def parse_chat(body: dict[str, object], served: tuple[ServedModel, ...], chance: Chance) -> Call:
    """Raises ModelNotFound, NotReady (nothing is served yet), InvalidRequest."""
    model = served_model(body.get("model"), served)
    fields = Fields(body)
    refuse_unsupported(body)
    messages = parse_messages(fields.get("messages"))
    limit = fields.integer("max_completion_tokens", 1)
    older_limit = fields.integer("max_tokens", 1)
    return _call(fields, chance, model, messages, None, limit or older_limit)


def parse_completion(
    body: dict[str, object], served: tuple[ServedModel, ...], chance: Chance
) -> Call:
    """Raises ModelNotFound, NotReady (nothing is served yet), InvalidRequest."""
    model = served_model(body.get("model"), served)
    fields = Fields(body)
    refuse_unsupported(body)
    prompt = _prompt(fields.get("prompt"))
    limit = fields.integer("max_tokens", 1)
    return _call(fields, chance, model, (), prompt, limit or _COMPLETION_TOKENS)


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


def _call(
    fields: Fields,
    chance: Chance,
    model: ModelId,
    messages: tuple[ChatMessage, ...],
    prompt: str | None,
    limit: int | None,
) -> Call:
    request = GenerationRequest(
        id=RequestId(f"{chance(128):032x}"),
        model=model,
        messages=messages,
        prompt=prompt,
        sampling=_sampling(fields, chance),
        max_tokens=None if limit is None else min(limit, _MOST_TOKENS),
        stop=_stops(fields.get("stop")),
    )
    include_usage = fields.record("stream_options").flag("include_usage")
    return Call(request, fields.flag("stream"), include_usage)


def _sampling(fields: Fields, chance: Chance) -> Sampling:
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    if top_p == 0.0:
        raise wrong("top_p", "a number above 0 and up to 1")
    top_k = fields.integer("top_k", -1, _MOST_TOKENS)
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    return Sampling(
        temperature=fields.number("temperature", 1.0, 0.0, 2.0),
        top_p=top_p,
        top_k=max(top_k or 0, 0),  # vLLM's clients say -1 for "no limit"
        seed=chance(64) if seed is None else seed % 2**64,
    )


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
