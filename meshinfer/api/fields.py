"""Typed access to the fields of a JSON object. A null counts as absent.

No error quotes a value: it may be a prompt.
"""

from __future__ import annotations

from typing import TypeGuard

from meshinfer.errors import InvalidRequest

_LEAST_POSITIVE = 1e-6


class Fields:
    """Reads one request's body. Every method raises InvalidRequest that names the field."""

    def __init__(self, body: dict[str, object]) -> None:
        self._body = body

    def get(self, name: str) -> object:
        """The value as it came; None when absent."""
        return self._body.get(name)

    def flag(self, name: str) -> bool:
        value = self._body.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise wrong(name, "true or false")
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """Within `least` and `most`, both allowed."""
        value = self._body.get(name)
        if value is None:
            return default
        if not is_number(value) or not least <= value <= most:
            raise wrong(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def positive(self, name: str, default: float, most: float) -> float:
        """Above 0 and up to `most`. What is all but 0 becomes a millionth: the wire's float32 would
        make it 0, and a PC that receives that takes it for a broken peer."""
        value = self._body.get(name)
        if value is None:
            return default
        if not is_number(value) or not 0.0 < value <= most:
            raise wrong(name, f"a number above 0 and up to {most:g}")
        return max(float(value), _LEAST_POSITIVE)

    def integer(self, name: str, least: int, most: int | None = None) -> int | None:
        """At least `least`; None when absent."""
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong(name, "an integer")
        if value < least or (most is not None and value > most):
            limit = f"at least {least}" if most is None else f"from {least} to {most}"
            raise wrong(name, f"an integer of {limit}")
        return value

    def record(self, name: str) -> Fields:
        """An object; an empty one when absent."""
        value = self._body.get(name)
        if value is None:
            return Fields({})
        if not isinstance(value, dict):
            raise wrong(name, "an object")
        return Fields(value)


def is_number(value: object) -> TypeGuard[int | float]:
    """A number of JSON; to Python true and false are numbers too."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def wrong(name: str, wanted: str, place: str | None = None) -> InvalidRequest:
    """The field `name` is not what it must be; `place` says where inside it."""
    return InvalidRequest(f"'{place or name}' must be {wanted}.", param=name)


def whole_text(name: str, text: str, place: str | None = None) -> str:
    """`text` itself. Raises InvalidRequest when it holds half a surrogate pair, as a client makes
    it that cuts an emoji: such text has no UTF-8 form and could not travel to another PC."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # not chained: the error carries the text
        raise wrong(name, "whole Unicode characters", place) from None
    return text
