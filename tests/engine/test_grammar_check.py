"""S10: a grammar that means harm ends a child process, not this one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshinfer.core.request import Grammar, GrammarKind
from meshinfer.engine.grammar_check import TrialLimits, check_grammar
from meshinfer.engine.grammar_trial import trial
from meshinfer.errors import InvalidRequest


def schema(content: dict[str, Any]) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(content))


CHAIN = "start: a0\n" + "".join(f"a{n}: a{n + 1}\n" for n in range(3900)) + 'a3900: "x"\n'
PATTERNS = [{"type": "string", "pattern": f"^.*[a-z]{{{n}}}.*$"} for n in range(1, 40)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grammar", "cause"),
    [
        (Grammar(GrammarKind.LARK, CHAIN), "nested too deeply"),  # overflows the stack
        (schema({"allOf": PATTERNS}), "takes more than"),  # minutes
        (schema({"type": "integer", "multipleOf": 1_000_003}), "takes more than"),  # 340 MB
        (Grammar(GrammarKind.REGEX, "((a{1000}){1000}){1000}"), "too many|takes more"),
        (Grammar(GrammarKind.REGEX, "(" * 30_000 + "a" + ")" * 30_000), "regex"),
        (Grammar(GrammarKind.JSON_SCHEMA, "[" * 30_000 + "]" * 30_000), "recursion limit"),
    ],
)
def test_a_hostile_grammar_is_refused_in_bounded_time(grammar: Grammar, cause: str) -> None:
    with pytest.raises(InvalidRequest, match=cause) as caught:
        check_grammar(grammar, TrialLimits(seconds=1.5))
    assert caught.value.param == "response_format"
    assert len(str(caught.value)) < 500


@pytest.mark.slow
def test_an_ordinary_schema_passes() -> None:
    properties = {f"property_{n}": {"type": "string"} for n in range(100)}
    check_grammar(schema({"type": "object", "properties": properties}), TrialLimits(seconds=30.0))


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar(GrammarKind.REGEX, "[a-z]{3}"), ""),
        (Grammar(GrammarKind.REGEX, ""), ""),
        (Grammar(GrammarKind.JSON, ""), ""),
        (schema({"enum": ["a", "\u00e9"]}), ""),
        (schema({"$ref": "#/x"}), "Pointer '/x' does not exist"),
        (Grammar(GrammarKind.JSON_SCHEMA, "{"), "EOF while parsing an object at line 1 column 1"),
    ],
)
def test_what_a_trial_says(grammar: Grammar, said: str) -> None:
    assert trial(grammar) == said
