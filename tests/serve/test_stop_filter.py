"""C09: stop strings over several tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.serve.stop_filter import StopFilter


def shown(stops: tuple[str, ...], parts: list[str]) -> tuple[str, bool]:
    """All text that leaves the filter, and whether it stopped."""
    stop = StopFilter(stops)
    text = ""
    for part in parts:
        safe, stopped = stop.feed(part)
        text += safe
        if stopped:
            return text, True
    return text + stop.finish(), False


@pytest.mark.parametrize(
    ("stops", "parts", "expected"),
    [
        pytest.param(("DEFGHIJ",), ["ABC", "DEF", "G", "HI", "JK"], ("ABC", True), id="four-parts"),
        pytest.param(("EF",), ["ABC", "DEFG"], ("ABCD", True), id="inside-one"),
        pytest.param(("AB",), ["ABC"], ("", True), id="at-the-start"),
        pytest.param(("👋!",), ["hi 👋", "!"], ("hi ", True), id="emoji"),
        pytest.param(("abcdef", "cd"), ["ab", "cd", "ef"], ("ab", True), id="first-complete-wins"),
        pytest.param(("bc", "abc"), ["xabc"], ("x", True), id="longer-of-two-that-end-together"),
        pytest.param(("\n\n",), ["a\n", "b\n", "\nc"], ("a\nb", True), id="newline-released"),
        pytest.param(("aab",), ["a", "a", "a", "b"], ("a", True), id="restart-inside"),
        pytest.param(("xyz",), ["ax", "y"], ("axy", False), id="never-complete"),
        pytest.param((), ["a", "b"], ("ab", False), id="no-stops"),
    ],
)
def test_text_ends_before_the_stop(
    stops: tuple[str, ...], parts: list[str], expected: tuple[str, bool]
) -> None:
    assert shown(stops, parts) == expected


def test_only_what_may_become_a_stop_is_held_back() -> None:
    stop = StopFilter(("END",))
    assert stop.feed("one E") == ("one ", False)
    assert stop.feed("N") == ("", False)
    assert stop.feed("E") == ("EN", False)
    assert stop.finish() == "E"
    assert stop.finish() == ""


def test_without_stops_nothing_is_ever_held_back() -> None:
    stop = StopFilter(())
    assert stop.feed("a") == ("a", False)
    assert stop.finish() == ""


def test_a_long_stop_is_found_and_released_in_small_parts() -> None:
    long = "ab" * 500
    assert shown((long,), ["x", *long, "y"]) == ("x", True)
    assert shown((long,), ["x", *long[:-1], "y"]) == (f"x{long[:-1]}y", False)


@given(
    st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3),
    st.text("ab", max_size=9),
)
def test_exactly_the_longest_beginning_of_a_stop_is_held(stops: list[str], text: str) -> None:
    stop = StopFilter(tuple(stops))
    safe, stopped = stop.feed(text)
    if not stopped:
        ends = [text[start:] for start in range(len(text) + 1)]
        held = next(one for one in ends if any(whole.startswith(one) for whole in stops))
        assert (safe, stop.finish()) == (text.removesuffix(held), held)


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_the_cut_into_parts_changes_nothing(stops: list[str], parts: list[str]) -> None:
    text = "".join(parts)
    result, stopped = shown(tuple(stops), parts)
    assert (result, stopped) == shown(tuple(stops), [text])
    assert (result, stopped) == shown(tuple(stops), list(text))
    assert stopped == any(stop in text for stop in stops)
    assert text.startswith(result)
    assert not any(stop in result for stop in stops)
