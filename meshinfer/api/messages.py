"""`messages` of a chat request -> ChatMessages."""

from __future__ import annotations

from meshinfer.api.fields import whole_text, wrong
from meshinfer.core.request import ChatMessage
from meshinfer.errors import InvalidRequest

_FIELD = "messages"
_MOST = 8192  # far below what one wire message may list (wire/codec.py, MAX_ITEMS)
_ROLES = {
    "system": "system",
    "developer": "system",  # OpenAI's newer word; chat templates know the older one
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def parse_messages(value: object) -> tuple[ChatMessage, ...]:
    """At least one message. An empty `content` is allowed: templates give it its turn.

    Raises InvalidRequest with param `messages`; its text says which message is wrong.
    """
    if not isinstance(value, list) or not value:
        raise wrong(_FIELD, "a list with at least one message")
    if len(value) > _MOST:
        raise wrong(_FIELD, f"a list of at most {_MOST} messages")
    return tuple(_message(entry, f"{_FIELD}[{place}]") for place, entry in enumerate(value))


def _message(entry: object, place: str) -> ChatMessage:
    if not isinstance(entry, dict):
        raise wrong(_FIELD, "an object", place)
    role = entry.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong(_FIELD, f"one of {', '.join(_ROLES)}", f"{place}.role")
    if entry.get("tool_calls") or entry.get("function_call"):
        raise InvalidRequest(f"'{place}' calls tools.", "Tools are not supported.", param=_FIELD)
    return ChatMessage(_ROLES[role], _content(entry.get("content"), f"{place}.content"))


def _content(content: object, place: str) -> str:
    if isinstance(content, str):
        return whole_text(_FIELD, content, place)
    if not isinstance(content, list) or not content:
        raise wrong(_FIELD, "a string or a list of text parts", place)
    # Joined without a separator, as chat templates do that take parts themselves.
    return "".join(_part(part, f"{place}[{number}]") for number, part in enumerate(content))


def _part(part: object, place: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise wrong(_FIELD, "an object with a type", place)
    if part["type"] != "text":
        raise InvalidRequest(
            f"'{place}' is not text: images, sound and files are not supported.",
            "Send text parts only.",
            param=_FIELD,
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise wrong(_FIELD, "a string", f"{place}.text")
    return whole_text(_FIELD, text, place)
