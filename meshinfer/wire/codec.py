"""Frozen dataclasses <-> msgpack. The only importer of msgpack.

A dataclass becomes an array of its fields, in order. What arrives is checked against the
annotations, exactly: number of fields, type of each (a bool is not an int), finite floats, known
enum values, lengths. Nothing is constructed from a name that a peer sent.

Annotations understood: bool, int, float, str, bytes, StrEnum, NewType of those, `X | None`,
`tuple[X, ...]`, `tuple[X, Y]`, and frozen dataclasses of these.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgpack

from meshinfer.errors import ProtocolViolation

T = TypeVar("T")
Check = Callable[[Any], Any]

MAX_ITEMS = 32768
"""Longest array a header may hold: the pieces (1 MiB each) of a stage's largest file."""


def encode(message: object) -> bytes:
    """msgpack array of the message's fields.

    Raises ProtocolViolation for a value that the other side could not take: half a surrogate pair,
    an integer beyond 64 bits, an array that is too long.
    """
    try:
        packed: bytes = msgpack.packb(_plain(message), use_bin_type=True)
    except (UnicodeEncodeError, OverflowError) as error:
        # Neither error is chained: a UnicodeEncodeError carries the text, which may be a prompt.
        reason = type(error).__name__
        raise ProtocolViolation(f"{type(message).__name__} cannot travel ({reason})") from None
    return packed


def decode(kind: type[T], data: bytes | memoryview) -> T:
    """A `kind` from its bytes. Raises ProtocolViolation that names the field."""
    size = len(data)
    try:
        raw = msgpack.unpackb(
            data,
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_str_len=size,
            max_bin_len=size,
            # msgpack allocates what an array announces: never more than the bytes could fill.
            max_array_len=min(MAX_ITEMS, size),
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolViolation(f"{kind.__name__}: not a msgpack header ({error})") from error
    checker = _checker(typing.cast(Any, kind))
    return typing.cast(T, checker(raw))


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, tuple):
        if len(value) > MAX_ITEMS:
            raise ProtocolViolation(f"an array of {len(value)} items; {MAX_ITEMS} may travel")
        return [_plain(item) for item in value]
    return value


@cache
def _checker(annotation: Any) -> Check:
    """The function that turns plain data into a value of `annotation`."""
    if isinstance(annotation, typing.NewType):
        return _checker(annotation.__supertype__)
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _optional(arguments)
    if origin is tuple:
        return _sequence(arguments)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation)
    if is_dataclass(annotation) and isinstance(annotation, type):
        return _record(annotation)
    if annotation in (bool, int, float, str, bytes):
        return _scalar(annotation)
    raise TypeError(f"{annotation} has no place in a message")


def _scalar(kind: type) -> Check:
    def check(value: Any) -> Any:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ProtocolViolation(f"{type(value).__name__} where {kind.__name__} belongs")
        if kind is float and not math.isfinite(typing.cast(float, value)):
            raise ProtocolViolation("a number that is not finite")
        return value

    return check


def _enum(kind: type[Enum]) -> Check:
    def check(value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError as error:
            raise ProtocolViolation(f"unknown {kind.__name__}") from error

    return check


def _optional(arguments: tuple[Any, ...]) -> Check:
    (inner,) = [argument for argument in arguments if argument is not type(None)]
    checker = _checker(inner)

    def check(value: Any) -> Any:
        return None if value is None else checker(value)

    return check


def _sequence(arguments: tuple[Any, ...]) -> Check:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _checker(arguments[0])

        def check_all(value: Any) -> tuple[Any, ...]:
            if type(value) is not list:
                raise ProtocolViolation("no array where one belongs")
            return tuple(item(entry) for entry in value)

        return check_all
    parts = [_checker(argument) for argument in arguments]

    def check_each(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(parts):
            raise ProtocolViolation(f"no array of {len(parts)} where one belongs")
        return tuple(part(entry) for part, entry in zip(parts, value, strict=True))

    return check_each


def _record(kind: type) -> Check:
    hints = typing.get_type_hints(kind)
    checks = [(field.name, _checker(hints[field.name])) for field in fields(kind)]

    def check(value: Any) -> Any:
        if type(value) is not list or len(value) != len(checks):
            raise ProtocolViolation(f"{kind.__name__} does not have {len(checks)} fields")
        known: dict[str, Any] = {}
        for (name, checker), entry in zip(checks, value, strict=True):
            try:
                known[name] = checker(entry)
            except ProtocolViolation as error:
                raise ProtocolViolation(f"{kind.__name__}.{name}: {error.cause}") from error
        try:
            return kind(**known)
        except ValueError as error:  # an invariant in __post_init__
            raise ProtocolViolation(f"{kind.__name__}: {error}") from error

    return check
