"""C21: a draft of another vocabulary is told apart; padding of the head makes no difference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.engine.toy_tokenizer import ByteTokenizer
from meshinfer.engine.vocabulary_digest import digest_of, vocabulary_digest

WORDS = {0: b"<s>", 1: b"a", 2: b"b", 3: b"<end>"}
SPECIAL, ENDS = frozenset({0, 3}), frozenset({3})

VOCABULARIES = st.dictionaries(st.integers(0, 1 << 18), st.binary(min_size=1, max_size=4))


def test_padding_rows_do_not_count() -> None:
    padded = {**WORDS, 4: b""}
    assert digest_of(padded, SPECIAL, ENDS) == digest_of(WORDS, SPECIAL, ENDS)


@pytest.mark.parametrize(
    ("vocabulary", "special", "ends"),
    [
        ({**WORDS, 1: b"c"}, SPECIAL, ENDS),
        ({**WORDS, 1: b"b", 2: b"a"}, SPECIAL, ENDS),
        ({**WORDS, 4: b"c"}, SPECIAL, ENDS),
        ({0: b"<s>", 1: b"a", 2: b"b"}, SPECIAL, ENDS),
        (WORDS, frozenset({0}), ENDS),
        (WORDS, SPECIAL, frozenset({0, 3})),
        ({**WORDS, 1: b"ab", 2: b""}, SPECIAL, ENDS),
    ],
    ids=["other word", "permuted", "more", "fewer", "shown", "other end", "joined"],
)
def test_another_vocabulary_has_another_digest(
    vocabulary: dict[int, bytes], special: frozenset[int], ends: frozenset[int]
) -> None:
    assert digest_of(vocabulary, special, ends) != digest_of(WORDS, SPECIAL, ENDS)


@given(VOCABULARIES, VOCABULARIES)
def test_equal_digests_are_of_equal_vocabularies(
    one: dict[int, bytes], other: dict[int, bytes]
) -> None:
    assert (digest_of(one, (), ()) == digest_of(other, (), ())) == (one == other)


@given(VOCABULARIES)
def test_the_order_of_a_vocabulary_does_not_matter(vocabulary: dict[int, bytes]) -> None:
    backwards = dict(reversed(vocabulary.items()))
    assert digest_of(backwards, (), ()) == digest_of(vocabulary, (), ())


def test_the_tokenizers_own_end_counts() -> None:
    tokenizer = ByteTokenizer()
    own = tokenizer.end_token()
    named = () if own is None else (own,)
    expected = digest_of(tokenizer.vocabulary(), tokenizer.special_tokens(), named)
    assert vocabulary_digest(tokenizer, ()) == vocabulary_digest(tokenizer, named) == expected
