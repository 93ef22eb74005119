"""response_format and guided_*: what the answer must look like."""

from __future__ import annotations

import json
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.api.fields import Fields
from meshinfer.api.grammar import parse_grammar
from meshinfer.core.request import Grammar, GrammarKind
from meshinfer.errors import InvalidRequest

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {"enum": ["ü", 1.5]}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{},"a":{"enum":["ü",1.5]}}}'
ODD = string.punctuation + "ab \n\té"
STRICT = {"name": "x", "strict": True, "schema": SCHEMA}
DEEP: dict[str, object] = {}
for _ in range(100_000):
    DEEP = {"not": DEEP}


def grammar(**body: object) -> Grammar | None:
    return parse_grammar(Fields(body))


@pytest.mark.parametrize(
    "body", [{}, {"response_format": None}, {"response_format": {"type": "text"}}]
)
def test_any_answer_will_do(body: dict[str, object]) -> None:
    assert grammar(**body) is None


@pytest.mark.parametrize(
    ("field", "value", "kind", "text"),
    [
        ("response_format", {"type": "json_object"}, GrammarKind.JSON, ""),
        (
            "response_format",
            {"type": "json_schema", "json_schema": STRICT},
            GrammarKind.JSON_SCHEMA,
            SCHEMA_TEXT,
        ),
        ("guided_json", SCHEMA, GrammarKind.JSON_SCHEMA, SCHEMA_TEXT),
        ("guided_json", json.dumps(SCHEMA), GrammarKind.JSON_SCHEMA, SCHEMA_TEXT),
        ("guided_regex", "[0-9]+", GrammarKind.REGEX, "[0-9]+"),
        ("guided_choice", ["yes", "no", "yes"], GrammarKind.REGEX, "(yes|no)"),
        ("guided_choice", ["1+1?", "a b-c"], GrammarKind.REGEX, r"(1\+1\?|a b-c)"),
        ("guided_grammar", 'start: "a"', GrammarKind.LARK, 'start: "a"'),
    ],
)
def test_each_field(field: str, value: object, kind: GrammarKind, text: str) -> None:
    assert grammar(**{field: value}) == Grammar(kind, text)


@given(st.lists(st.text(ODD, min_size=1), min_size=1))
def test_a_choice_matches_exactly_its_strings(choices: list[str]) -> None:
    found = grammar(guided_choice=choices)
    assert found is not None
    assert all(re.fullmatch(found.text, one) for one in choices)
    assert not re.fullmatch(found.text, "".join(choices) + choices[0])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {}),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": ["text"]}),
        ("response_format", "json_object"),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": SCHEMA}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": []}}),
        ("guided_json", "{"),
        ("guided_json", "[]"),
        ("guided_json", "[" * 60_000),
        ("guided_json", {"const": float("inf")}),
        ("guided_json", {"const": "\ud83d"}),
        ("guided_json", {"const": "x" * 70_000}),
        ("guided_json", DEEP),
        ("guided_json", 5),
        ("guided_regex", ""),
        ("guided_regex", 5),
        ("guided_regex", "a" * 65_537),
        ("guided_regex", "é" * 32_769),
        ("guided_choice", []),
        ("guided_choice", "a"),
        ("guided_choice", ["a", ""]),
        ("guided_choice", ["a", None]),
        ("guided_choice", ["a"] * 1025),
        ("guided_choice", ["a" * 60_000, "b" * 60_000]),
        ("guided_grammar", {}),
    ],
)
def test_wrong_values_name_their_field_and_quote_nothing(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar(**{field: value})
    assert caught.value.param == field
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_only_one_at_a_time() -> None:
    with pytest.raises(InvalidRequest, match="'response_format' and 'guided_regex'") as caught:
        grammar(guided_regex="a", response_format={"type": "json_object"})
    assert caught.value.param == "guided_regex"
