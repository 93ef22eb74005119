"""Whatever is drawn under a mask is an answer of the grammar, and only that may end."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest

from meshinfer.core.request import Grammar, GrammarKind
from meshinfer.engine.grammar import Constraint, GrammarCompiler
from meshinfer.engine.grammar_source import MOST_TEXT
from meshinfer.engine.toy_tokenizer import BEGIN_TOKEN, END_TOKEN, ByteTokenizer
from meshinfer.errors import InvalidRequest, StageFailed
from tests.engine.grammar_walk import allowed, walk

SIZE = 270  # 12 more than the tokenizer has
ENDS = (END_TOKEN, 262)  # of which the second is padding to the tokenizer
TOY = ByteTokenizer()
VOCABULARY = TOY.vocabulary()

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def compiler(ends: tuple[int, ...] = ENDS) -> GrammarCompiler:
    return GrammarCompiler(VOCABULARY, SIZE, TOY.special_tokens(), ends, TOY.encode_text)


@pytest.fixture(scope="module")
def shared() -> GrammarCompiler:
    return compiler()


JSON = Grammar(GrammarKind.JSON, "")
SCHEMA = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON))


def after(constraint: Constraint, text: bytes) -> Constraint:
    for byte in text:
        constraint.accept(byte)
    return constraint


def test_a_json_answer_is_an_object(shared: GrammarCompiler) -> None:
    ended = 0
    for seed in range(12):
        text = walk(shared.compile(JSON), VOCABULARY, ENDS, Random(seed), 120)
        if text is not None:
            assert isinstance(json.loads(text), dict)
            ended += 1
    assert ended > 3


@pytest.mark.slow
def test_an_answer_fits_its_schema(shared: GrammarCompiler) -> None:
    for seed in range(12):
        text = walk(shared.compile(SCHEMA), VOCABULARY, ENDS, Random(seed))
        assert text is not None
        person = json.loads(text)
        assert {"name", "age"} <= set(person) <= {"name", "age", "tags"}
        assert isinstance(person["name"], str)
        assert len(person["name"]) <= 12
        assert 0 <= person["age"] <= 120
        assert set(person.get("tags", [])) <= {"red", "green"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "text", "pattern"),
    [
        (GrammarKind.REGEX, r"(yes|no)( [0-9]{2,3})?", r"(yes|no)( [0-9]{2,3})?"),
        (GrammarKind.REGEX, "a?", "a?"),
        (GrammarKind.LARK, 'start: "x" (SIGN INT)+\nSIGN: "+" | "-"\nINT: /[1-9]{1,3}/',
         r"x([+-][1-9]{1,3})+"),
    ],
)  # fmt: skip
def test_an_answer_fits_its_regex_or_grammar(
    shared: GrammarCompiler, kind: GrammarKind, text: str, pattern: str
) -> None:
    for seed in range(8):
        said = walk(shared.compile(Grammar(kind, text)), VOCABULARY, ENDS, Random(seed), 200)
        assert said is not None
        assert re.fullmatch(pattern, said.decode())


@pytest.mark.parametrize("place", [b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":[1'])
def test_json_has_no_or_single_spaces_between_its_parts(
    shared: GrammarCompiler, place: bytes
) -> None:
    constraint = after(shared.compile(JSON), place)
    assert not {*b"\n\t\r"} & set(allowed(constraint))
    constraint.accept(ord(" "))
    assert not {*b" \n\t\r"} & set(allowed(constraint))


def test_a_mask_has_words_of_32_bits_and_no_special_or_padding_tokens(
    shared: GrammarCompiler,
) -> None:
    inside = after(shared.compile(JSON), b'{"')
    assert len(inside.mask()) == -(-SIZE // 32) * 4
    assert set(allowed(inside)) <= set(range(255))
    assert BEGIN_TOKEN not in allowed(inside)


def test_end_tokens_are_allowed_exactly_where_the_grammar_may_end(shared: GrammarCompiler) -> None:
    constraint = shared.compile(JSON)
    for byte in b'{"a": [1, {}]}':
        assert not set(ENDS) & set(allowed(constraint))
        assert not constraint.is_complete
        constraint.accept(byte)
    assert allowed(constraint) == list(ENDS)
    assert constraint.is_complete


def test_a_constraint_of_a_model_without_end_tokens_is_complete_and_allows_nothing() -> None:
    constraint = after(compiler(ends=()).compile(JSON), b"{}")
    assert constraint.is_complete
    assert allowed(constraint) == []


def test_a_forbidden_token_is_a_bug_and_leaves_the_constraint_as_it_was(
    shared: GrammarCompiler,
) -> None:
    constraint = after(shared.compile(JSON), b"{")
    before = allowed(constraint)
    for token in (ord("a"), END_TOKEN, BEGIN_TOKEN, 300, -1):
        with pytest.raises(StageFailed, match="grammar forbids"):
            constraint.accept(token)
    assert allowed(constraint) == before
    after(constraint, b"}").accept(END_TOKEN)
    with pytest.raises(StageFailed):
        constraint.accept(ord("}"))


def test_a_copy_goes_its_own_way(shared: GrammarCompiler) -> None:
    one = after(shared.compile(JSON), b'{"a"')
    other = after(one.copy(), b":1}")
    assert other.is_complete
    assert not one.is_complete
    assert ord(":") in allowed(one)
    assert after(other.copy(), b"").mask() == other.mask()


def test_a_compiled_grammar_begins_anew_for_every_answer(shared: GrammarCompiler) -> None:
    after(shared.compile(JSON), b"{}")
    assert allowed(shared.compile(JSON)) == [ord("{")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "blah"}', "Invalid type: blah"),
        (GrammarKind.JSON_SCHEMA, '{"type":', "EOF"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "http://example.org/x"}', "does not fetch"),
        (GrammarKind.JSON_SCHEMA, '{"type": "object", "not": {}}', "not"),
        (GrammarKind.REGEX, "a(", "unclosed group"),
        (GrammarKind.LARK, "start: b", 'unknown name: "b"'),
        (GrammarKind.LARK, "start: <end>", "unknown special token"),
    ],
)
def test_a_wrong_grammar_is_refused_with_its_reason(
    shared: GrammarCompiler, kind: GrammarKind, text: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        shared.compile(Grammar(kind, text))
    assert caught.value.param == "response_format"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "reason"), [("x" * (MOST_TEXT + 1), "65537 bytes"), ("\ud800", "not valid Unicode")]
)
def test_a_text_that_is_no_grammar_at_all_is_refused_at_once(
    shared: GrammarCompiler, text: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        shared.compile(Grammar(GrammarKind.REGEX, text))
    assert caught.value.param == "response_format"


@pytest.mark.slow
def test_a_place_where_no_text_may_follow_is_told(shared: GrammarCompiler) -> None:
    grammar = Grammar(GrammarKind.LARK, 'start: "a" <[255]> "b"')  # a token that is no text
    constraint = shared.compile(grammar)
    constraint.accept(ord("a"))
    with pytest.raises(InvalidRequest, match="no text token"):
        constraint.mask()
