"""What the answer must look like: OpenAI's `response_format` and vLLM's `guided_*` -> a Grammar.

Whether the grammar itself can be understood is found out where tokens are drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from meshinfer.api.fields import Fields, whole_text, wrong
from meshinfer.core.request import Grammar, GrammarKind
from meshinfer.errors import InvalidRequest

_LONGEST = 64 << 10  # bytes in UTF-8, as its compiler takes (engine/grammar_source.py, MOST_TEXT)
_MOST_CHOICES = 1024
_ESCAPES = {ord(sign): f"\\{sign}" for sign in r"\^$.|?*+()[]{}"}
"""What every dialect takes behind a backslash; `re.escape` escapes more than some know."""


def parse_grammar(fields: Fields) -> Grammar | None:
    """None when any answer will do. Raises InvalidRequest, also when two fields ask for one."""
    found: dict[str, Grammar] = {}
    for name, parse in _PARSERS.items():
        value = fields.get(name)
        grammar = None if value is None else parse(name, value)
        if grammar is not None:
            found[name] = grammar
    if len(found) > 1:
        names = " and ".join(f"'{name}'" for name in found)
        raise InvalidRequest(
            f"{names} cannot be had together.", "Send one of them.", param=list(found)[-1]
        )
    return next(iter(found.values()), None)


def _response_format(name: str, value: object) -> Grammar | None:
    kind = value.get("type") if isinstance(value, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            return Grammar(GrammarKind.JSON, "")
        case "json_schema":
            assert isinstance(value, dict)
            nested = value.get("json_schema")
            schema = nested.get("schema") if isinstance(nested, dict) else None
            return _schema(name, schema, "json_schema.schema")
    raise wrong(name, "text, json_object or json_schema", f"{name}.type")


def _guided_json(name: str, value: object) -> Grammar:
    """A schema, or its text."""
    if not isinstance(value, str):
        return _schema(name, value)
    try:
        schema = json.loads(_text(name, value))
    except (ValueError, RecursionError):
        # not chained: the error carries the text
        raise wrong(name, "a JSON schema") from None
    return _schema(name, schema)


def _schema(name: str, schema: object, place: str = "") -> Grammar:
    place = f"{name}.{place}" if place else name
    if not isinstance(schema, dict):
        raise wrong(name, "a JSON schema, which is an object", place)
    try:
        # the order of keys stays: it is the order in which properties are written
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        raise wrong(name, "a JSON schema without endless numbers or nesting", place) from None
    return Grammar(GrammarKind.JSON_SCHEMA, _text(name, text))


def _regex(name: str, value: object) -> Grammar:
    return Grammar(GrammarKind.REGEX, _text(name, value))


def _choice(name: str, value: object) -> Grammar:
    """One of some strings, as a regex."""
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_CHOICES:
        raise wrong(name, f"a list of 1 to {_MOST_CHOICES} strings")
    escaped = dict.fromkeys(_text(name, one).translate(_ESCAPES) for one in value)
    return Grammar(GrammarKind.REGEX, _text(name, f"({'|'.join(escaped)})"))


def _lark(name: str, value: object) -> Grammar:
    return Grammar(GrammarKind.LARK, _text(name, value))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise wrong(name, "text that is not empty")
    if len(whole_text(name, value).encode("utf-8")) > _LONGEST:
        raise wrong(name, f"at most {_LONGEST} bytes of text")
    return value


_PARSERS: dict[str, Callable[[str, object], Grammar | None]] = {
    "response_format": _response_format,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_json": _guided_json,
    "guided_grammar": _lark,
}
