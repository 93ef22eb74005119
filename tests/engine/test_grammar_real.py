"""Grammars over the vocabulary of a real model: tokens of several bytes, special ones, a BPE."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from meshinfer.core.request import Grammar, GrammarKind
from meshinfer.engine.detokenizer import Detokenizer
from meshinfer.engine.grammar import GrammarCompiler
from meshinfer.engine.tokenizer import GenAiTokenizer
from tests.engine.grammar_walk import allowed, walk

SIZE = 49_152 + 64  # as if the head were padded
SCHEMA = {
    "type": "object",
    "properties": {
        "first name": {"type": "string", "maxLength": 20},
        "scores": {"type": "array", "items": {"type": "number"}, "maxItems": 4},
        "is_member": {"type": "boolean"},
        "marker": {"const": "<|im_end|>"},
    },
    "required": ["first name", "scores", "is_member", "marker"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> GenAiTokenizer:
    return GenAiTokenizer.load(smollm2)


@pytest.fixture(scope="module")
def compiler(tokenizer: GenAiTokenizer) -> GrammarCompiler:
    end = tokenizer.end_token()
    assert end is not None
    return GrammarCompiler(
        tokenizer.vocabulary(), SIZE, tokenizer.special_tokens(), {end}, tokenizer.encode_text
    )


@pytest.mark.slow
@pytest.mark.openvino
def test_random_answers_of_a_real_vocabulary_fit_the_schema(
    tokenizer: GenAiTokenizer, compiler: GrammarCompiler
) -> None:
    vocabulary, end = tokenizer.vocabulary(), tokenizer.end_token()
    assert end is not None
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    for seed in range(6):
        text = walk(compiler.compile(grammar), vocabulary, {end}, Random(seed), 120)
        assert text is not None
        answer = json.loads(text)
        assert list(answer) == ["first name", "scores", "is_member", "marker"]
        assert answer["marker"] == "<|im_end|>"
        assert len(answer["first name"]) <= 20
        assert isinstance(answer["is_member"], bool)
        assert all(isinstance(score, int | float) for score in answer["scores"])


@pytest.mark.slow
@pytest.mark.openvino
def test_forced_text_is_written_as_the_model_was_taught_and_shown_whole(
    tokenizer: GenAiTokenizer, compiler: GrammarCompiler
) -> None:
    constraint = compiler.compile(Grammar(GrammarKind.REGEX, r"Dear customer, thank you!( Bye)?"))
    stream = Detokenizer(tokenizer.vocabulary(), tokenizer.special_tokens()).stream()
    expected, drawn = tokenizer.encode_text("Dear customer, thank you"), []
    for _ in range(len(expected) - 1):  # the last one may be written in one with what follows
        (token,) = allowed(constraint)
        constraint.accept(token)
        drawn.append(token)
    assert drawn == expected[:-1]
    assert "Dear customer, thank you".startswith("".join(map(stream.feed, drawn)))


@pytest.mark.slow
@pytest.mark.openvino
def test_special_and_padding_tokens_never_come(
    tokenizer: GenAiTokenizer, compiler: GrammarCompiler
) -> None:
    constraint = compiler.compile(Grammar(GrammarKind.REGEX, r"(?s:.)*"))
    assert len(constraint.mask()) == SIZE // 8
    open_ended = set(allowed(constraint))
    assert open_ended & tokenizer.special_tokens() == {tokenizer.end_token()}
    assert len(open_ended) > 40_000
    assert max(open_ended) < 49_152
    assert not constraint.is_complete
