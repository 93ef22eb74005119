"""The join code: forgiving to people, silent in logs."""

from __future__ import annotations

import pytest

from meshinfer.errors import UsageError
from meshinfer.link.join_code import JoinCode

CODE = JoinCode(bytes(range(32)))
TEXT = "mi1-aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dyp2k6gg"


def test_the_text_is_prefix_and_56_characters() -> None:
    assert CODE.reveal() == TEXT
    assert len(TEXT) == 60


def test_a_code_is_new_every_time() -> None:
    assert JoinCode.new() != JoinCode.new()
    assert JoinCode.new(lambda count: bytes(range(count))) == CODE


@pytest.mark.parametrize(
    "typed",
    [
        TEXT,
        TEXT.upper(),
        f"  {TEXT}\r\n",
        TEXT[:20] + "\n" + TEXT[20:],
        " ".join(TEXT),
        "-".join(TEXT[start : start + 5] for start in range(0, 60, 5)),
        f'"{TEXT}"',
        TEXT[:4] + TEXT[4:].replace("o", "0").replace("l", "1"),
    ],
)
def test_what_people_make_of_a_code_is_understood(typed: str) -> None:
    assert JoinCode.parse(typed) == CODE


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "not a join code"),
        ("hello", "not a join code"),
        ("K10" + "a" * 50, "not a join code"),
        ("mi1-", "has 0 characters"),
        (TEXT[:-1], "has 55 characters"),
        (TEXT + "a", "has 57 characters"),
        (TEXT[:-1] + "9", "typo: a character is foreign"),
        (TEXT[:-1] + "ß", "characters"),
        (TEXT[:-1] + "é", "typo: a character is foreign"),
        (TEXT[:10] + TEXT[11] + TEXT[10] + TEXT[12:], "typo: its checksum is wrong"),
    ],
)
def test_each_mistake_is_named_and_the_text_is_not_repeated(typed: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        JoinCode.parse(typed)
    assert len(typed) < 6 or typed[:-1] not in str(caught.value)
    assert caught.value.__cause__ is None


def test_every_single_wrong_character_is_a_typo() -> None:
    for place in range(4, len(TEXT)):
        wrong = "b" if TEXT[place] != "b" else "c"
        with pytest.raises(UsageError, match="typo"):
            JoinCode.parse(TEXT[:place] + wrong + TEXT[place + 1 :])


def test_nothing_that_prints_it_shows_it() -> None:
    body = TEXT.removeprefix("mi1-")
    for shown in (repr(CODE), str(CODE), f"{CODE}", f"{[CODE]}", "%s" % CODE):  # noqa: UP031
        assert body not in shown
        assert CODE.fleet_id in shown


def test_the_fleet_id_is_fixed_by_the_code_and_public() -> None:
    assert CODE.fleet_id == JoinCode.parse(TEXT).fleet_id
    assert len(CODE.fleet_id) == 20
    assert CODE.fleet_id != JoinCode(bytes(32)).fleet_id
    assert bytes.fromhex(CODE.fleet_id) not in bytes(range(32))


def test_a_secret_of_another_length_is_a_bug() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        JoinCode(b"short")
