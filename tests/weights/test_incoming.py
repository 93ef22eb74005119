from __future__ import annotations

from meshinfer.core.ids import Digest
from meshinfer.weights.incoming import Change, Incoming

A, B, C = (Digest(letter * 64) for letter in "abc")


def test_what_is_asked_is_coming_until_it_is_here_or_dropped() -> None:
    incoming = Incoming()
    news: list[tuple[Change, Digest]] = []
    with incoming.watch(lambda change, digest: news.append((change, digest))):
        incoming.asked(A)
        incoming.asked(B)
        assert incoming.coming == {A, B}
        incoming.stored(A)
        incoming.dropped(B)
        incoming.lost(A)
    assert incoming.coming == frozenset()
    incoming.asked(C)  # nobody listens any more
    assert news == [
        (Change.ASKED, A),
        (Change.ASKED, B),
        (Change.STORED, A),
        (Change.DROPPED, B),
        (Change.LOST, A),
    ]


def test_it_grows_while_a_pull_wants_some_of_the_pieces() -> None:
    incoming = Incoming()
    news: list[Change] = []
    with incoming.watch(lambda change, digest: news.append(change)):
        assert not incoming.grows([A])
        with incoming.pulling([A, B]):
            assert incoming.grows([B, C])
            assert not incoming.grows([C])
            with incoming.pulling([B]):  # another stage with the same piece
                pass
            assert incoming.grows([B])
        assert not incoming.grows([A, B])
    assert news == [Change.PULLS] * 4


def test_what_a_pull_leaves_behind_is_not_coming_any_more() -> None:
    incoming = Incoming()
    news: list[tuple[Change, Digest]] = []
    with incoming.watch(lambda change, digest: news.append((change, digest))):
        with incoming.pulling([A, B]):
            incoming.asked(A)
        assert (Change.DROPPED, A) in news
    assert incoming.coming == frozenset()
