"""The census: what all stages hold is agreed by token ids, and garbage is refused."""

from __future__ import annotations

import numpy as np
import pytest

from meshinfer.errors import ProtocolViolation
from meshinfer.wire import cache_census as census
from meshinfer.wire.cache_census import Held


def held(sequence: int, *tokens: int) -> Held:
    return Held(sequence, np.array(tokens, np.int32))


def plain(some: tuple[Held, ...]) -> list[tuple[int, list[int]]]:
    return [(one.sequence, one.tokens.tolist()) for one in some]


TWO = (held(7, 1, 2, 3), held(2**32 - 1, 9))


def test_it_comes_back_whole_and_has_the_literal_bytes() -> None:
    payload = census.pack_census(TWO)
    assert payload == bytes.fromhex(
        "07000000 03000000 ffffffff 01000000 01000000 02000000 03000000 09000000"
    )
    assert plain(census.unpack_census(memoryview(payload), 2, 10)) == plain(TWO)
    lengths = ((7, 3), (2**32 - 1, 1))
    assert census.unpack_lengths(memoryview(census.pack_lengths(lengths)), 2) == lengths


def test_cut_short_or_lengthened() -> None:
    payload = census.pack_census(TWO)
    for length in range(len(payload)):
        with pytest.raises(ProtocolViolation):
            census.unpack_census(memoryview(payload[:length]), 2, 10)
    with pytest.raises(ProtocolViolation):
        census.unpack_census(memoryview(payload + bytes(4)), 2, 10)
    with pytest.raises(ProtocolViolation):
        census.unpack_lengths(memoryview(bytes(12)), 1)


@pytest.mark.parametrize("sequences", [-1, 3, census.MAX_SEQUENCES + 1])
def test_a_count_that_lies(sequences: int) -> None:
    with pytest.raises(ProtocolViolation):
        census.unpack_census(memoryview(census.pack_census(TWO)), sequences, 10)


def test_a_sequence_twice_and_tokens_out_of_range() -> None:
    with pytest.raises(ProtocolViolation, match="twice"):
        census.unpack_census(memoryview(census.pack_census((TWO[0], TWO[0]))), 2, 10)
    with pytest.raises(ProtocolViolation, match="outside"):
        census.unpack_census(memoryview(census.pack_census(TWO)), 2, 9)


def test_in_common_is_what_is_equal_from_the_first_token_on() -> None:
    own = {
        1: np.array([5, 6, 7, 8], np.int32),
        2: np.array([5], np.int32),
        3: np.array([4, 4], np.int32),
        4: np.array([], np.int32),
    }
    asked = (held(1, 5, 6, 9), held(2, 5, 6), held(3, 5, 4), held(4, 1), held(6, 1))
    assert plain(census.common(asked, own)) == [(1, [5, 6]), (2, [5])]


def test_more_than_a_census_may_carry_is_left_out() -> None:
    large = tuple(Held(index, np.zeros(1 << 20, np.int32)) for index in range(4))
    assert len(census.limited(large)) == 1
    assert len(census.pack_census(census.limited(large))) <= census.MAX_CENSUS_BYTES
    many = tuple(held(index, 1) for index in range(census.MAX_SEQUENCES + 5))
    assert len(census.limited(many)) == census.MAX_SEQUENCES
