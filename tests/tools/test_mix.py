"""Questions by weight and length; words that nobody else has."""

from __future__ import annotations

import random

import pytest

from tools.loads.mix import Kind, pick, prompt_of
from tools.loads.words import LENGTH, foreign_words, new_word, question


def test_kinds_are_picked_by_weight() -> None:
    kinds = (Kind(3, 10, 20), Kind(1, 30, 40))
    chance = random.Random(1)
    picked = [pick(kinds, chance) for _ in range(2000)]
    assert 1400 < picked.count(kinds[0]) < 1600


@pytest.mark.parametrize("text", ["", "1:2", "0:1:1", "1:0:1", "1:1:0", "a:b:c", "1:1:1:1"])
def test_other_words_are_no_kinds(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Kind.parse(text)
    assert Kind.parse("0.5:50:200") == Kind(0.5, 50, 200)


def test_prompts_have_about_the_length_and_differ_from_their_first_words_on() -> None:
    chance = random.Random(1)
    prompts = [prompt_of(500, chance) for _ in range(50)]
    assert {490 < len(prompt.split()) < 510 for prompt in prompts} == {True}
    assert len({prompt[:20] for prompt in prompts}) == 50


def test_words_are_all_different() -> None:
    chance, known = random.Random(1), set[str]()
    words = [new_word(chance, known) for _ in range(500)]
    assert len(set(words)) == 500 == len(known)
    assert {len(word) for word in words} == {LENGTH}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", set()),
        ("kazovuje", set()),
        ("Kazovuje zebujoxi", {"zebujoxi"}),
        ("xxZEBUJOXIkazovuje", {"zebujoxi"}),
        ("zebujox", set()),
    ],
)
def test_a_word_of_others_is_seen_wherever_it_stands(text: str, found: set[str]) -> None:
    known = {"kazovuje", "zebujoxi"}
    assert foreign_words(text, "kazovuje", known) == found
    assert question("kazovuje").split('"')[1] == "kazovuje"
