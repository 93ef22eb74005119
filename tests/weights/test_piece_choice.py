from __future__ import annotations

import random as chance
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.weights.piece_choice import Standing, choose, set_of

COUNT = 12
SETS = st.integers(0, (1 << COUNT) - 1)
STANDINGS = st.builds(Standing, SETS, SETS, st.booleans(), st.booleans())


def first(n: int) -> int:
    return 0


def last(n: int) -> int:
    return n - 1


def test_a_set_is_made_of_numbers_in_any_order() -> None:
    assert set_of([]) == 0
    assert set_of(iter([9, 0, 70_000, 9])) == 1 | 1 << 9 | 1 << 70_000


@pytest.mark.parametrize(
    ("wanted", "mine", "others", "piece"),
    [
        (0b111, Standing(0b000), [], None),
        (0b000, Standing(0b111), [], None),
        (0b110, Standing(0b011), [], 1),
        # the rarest: 0 is with two others, 1 with one, 2 with none
        (0b111, Standing(0b111), [Standing(0b001), Standing(0b011)], 2),
        (0b011, Standing(0b011), [Standing(0b001), Standing(0b011)], 1),
        (0b001, Standing(0b001), [Standing(0b001), Standing(0b011)], 0),
        # the leader is left what nobody else can give
        (0b011, Standing(0b011, spare=True), [Standing(0b001)], 1),
        (0b001, Standing(0b001, spare=True), [Standing(0b001)], None),
        # unless the others have their hands full
        (0b001, Standing(0b001, spare=True), [Standing(0b001, has_room=False)], 0),
        # what is on its way to another, from the leader, will be there in a moment
        (0b011, Standing(0b011, spare=True), [Standing(coming=0b001)], 1),
        (0b001, Standing(0b001, spare=True), [Standing(coming=0b001)], None),
        # but one that has it and is not the leader gives it at once
        (0b001, Standing(0b001), [Standing(coming=0b001)], 0),
    ],
)
def test_what_is_chosen(
    wanted: int, mine: Standing, others: list[Standing], piece: int | None
) -> None:
    for random in (first, last):
        assert choose(wanted, mine, others, random) == piece


def test_any_among_equals() -> None:
    found = {choose(0b10110, Standing(0b11110), [], chance.Random(seed).randrange)
             for seed in range(40)}  # fmt: skip
    assert found == {1, 2, 4}


@given(SETS, STANDINGS, st.lists(STANDINGS, max_size=5), st.booleans(), st.integers(0, 99))
def test_only_what_is_wanted_and_held_and_the_rarest_of_it(
    wanted: int, mine: Standing, others: list[Standing], patient: bool, seed: int
) -> None:
    piece = choose(wanted, mine, others, chance.Random(seed).randrange, patient)
    if piece is None:
        return
    assert (wanted & mine.held) >> piece & 1

    def copies(number: int) -> int:
        return sum((one.held | one.coming) >> number & 1 for one in others)

    if not patient:
        allowed = [n for n in range(COUNT) if (wanted & mine.held) >> n & 1]
        assert copies(piece) == min(map(copies, allowed))


@given(SETS, STANDINGS, st.lists(STANDINGS, max_size=5))
def test_no_piece_starves(wanted: int, mine: Standing, others: list[Standing]) -> None:
    """What one holds is asked of it sooner or later; patience leaves a piece only to somebody who
    can give it: who has it and has room, or who gets it just now."""
    held = wanted & mine.held
    assert (choose(held, mine, others, first, patient=False) is None) == (held == 0)
    if choose(held, mine, others, first) is None and held:
        elsewhere = 0
        for one in others:
            elsewhere |= one.coming | (one.held if one.has_room and not one.spare else 0)
        assert held & ~elsewhere == 0


@given(st.lists(SETS, min_size=1, max_size=5), st.integers(0, 999))
def test_every_piece_is_asked_for_exactly_once_when_all_goes_well(
    held: list[int], seed: int
) -> None:
    random = chance.Random(seed)
    standings = [Standing(one, spare=index == 0) for index, one in enumerate(held)]
    wanted = everything = set_of(n for n in range(COUNT) if any(one >> n & 1 for one in held))
    asked: list[int] = []
    while wanted:
        index = random.randrange(len(standings))
        others = standings[:index] + standings[index + 1 :]
        piece = choose(wanted, standings[index], others, random.randrange)
        if piece is not None:
            wanted &= ~(1 << piece)
            asked.append(piece)
    assert set_of(asked) == everything
    assert len(asked) == everything.bit_count()


def test_four_that_start_together_get_different_pieces_from_the_leader() -> None:
    """Each sees what the others asked for: the leader sends everything once."""
    leader = Standing((1 << 40) - 1, spare=True)
    random = chance.Random(7)
    coming = [0, 0, 0, 0]
    for turn in range(40):
        me = turn % 4
        others = [Standing(coming=one) for index, one in enumerate(coming) if index != me]
        wanted = leader.held & ~coming[me]
        piece = choose(wanted, leader, others, random.randrange)
        assert piece is not None
        coming[me] |= 1 << piece
    assert sum(one.bit_count() for one in coming) == 40
    assert set_of(n for one in coming for n in range(40) if one >> n & 1) == leader.held
    me, *rest = coming
    idle = [Standing(coming=one) for one in rest]
    assert choose(leader.held & ~me, leader, idle, random.randrange) is None
    full = [replace(one, held=one.coming, coming=0, has_room=False) for one in idle]
    assert choose(leader.held & ~me, leader, full, random.randrange) is not None
