"""A Grammar in the form that llguidance reads, the limits of its parser, and its reasons in a line.

Shared by the compiler and by the child process that tries a grammar first. llguidance is imported
inside functions: a PC that does not lead never needs it.
"""

from __future__ import annotations

from typing import Any

from meshinfer.core.request import Grammar, GrammarKind

MOST_TEXT = 64 << 10  # bytes of a schema or grammar, in UTF-8
_MOST_REASON = 200  # characters of a line: a reason quotes the line of the grammar

_JSON_OPTIONS = {
    # At most one space between what belongs together: a model that likes line breaks would
    # otherwise write them until its tokens are used up.
    "whitespace_flexible": False,
    "whitespace_pattern": " ?",
    "lenient": False,  # what llguidance cannot enforce is refused, not ignored
}
_MOST_LEXER_STATES = 50_000
"""Of 1 to 2 KB each (llguidance's documentation): 100 MB at most, a fifth of its default."""


def serialised(grammar: Grammar) -> str:
    """For the constructor of LLMatcher. Raises ValueError, with the reason: JSON that is none."""
    from llguidance import LLMatcher

    if grammar.kind is GrammarKind.REGEX:
        return str(LLMatcher.grammar_from_regex(grammar.text))
    if grammar.kind is GrammarKind.LARK:
        return str(LLMatcher.grammar_from_lark(grammar.text))
    schema = '{"type": "object"}' if grammar.kind is GrammarKind.JSON else grammar.text
    options: Any = _JSON_OPTIONS
    return str(LLMatcher.grammar_from_json_schema(schema, overrides=options))


def matcher(tokenizer: Any, grammar: str) -> Any:
    """An LLMatcher, which never raises: ask `is_error()`."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_lexer_states=_MOST_LEXER_STATES, verbose_errors=False)
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def short_reason(said: str) -> str:
    """What llguidance said, without the source lines and internals behind it."""
    lines = said.strip().splitlines() or ["no reason given"]
    first = lines[0].removesuffix("<non-verbose/>").strip()[:_MOST_REASON]
    # A regex error ends in "error: unclosed group", some lines below its beginning.
    causes = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return " ".join([first, *(cause[:_MOST_REASON] for cause in causes[:1])]).rstrip(".:")
