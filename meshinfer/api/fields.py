"""Typed access to the fields of a JSON object. A null counts as absent.

No error quotes a value: it may be a prompt.
"""

from __future__ import annotations

from meshinfer.errors import InvalidRequest


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
        wanted = f"a number from {least:g} to {most:g}"
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise wrong(name, wanted)
        if not least <= value <= most:
            raise wrong(name, wanted)
        return float(value)

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
