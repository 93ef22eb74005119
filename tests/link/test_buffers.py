from __future__ import annotations

from meshinfer.link.buffers import KEPT, Buffers


def test_memory_is_used_again_once_nobody_looks_at_it() -> None:
    buffers = Buffers()
    first = buffers.take(1000)
    origin = first.obj
    second = buffers.take(1000)
    assert second.obj is not origin
    part = first[10:20]
    del first
    assert buffers.take(1000).obj is not origin  # a part of it is still looked at
    del part
    assert buffers.take(900).obj is origin


def test_a_view_has_just_the_size_that_was_asked_for() -> None:
    buffers = Buffers()
    assert len(buffers.take(1000)) == 1000
    assert len(buffers.take(10)) == 10
    assert len(buffers.take(0)) == 0


def test_what_somebody_holds_is_never_written_again() -> None:
    buffers = Buffers()
    held = []
    for number in range(3 * KEPT):
        view = buffers.take(100)
        view[:] = bytes([number]) * 100
        held.append(view)
    assert [view[50] for view in held] == list(range(3 * KEPT))


def test_when_it_keeps_enough_the_larger_ones_stay() -> None:
    buffers = Buffers()
    held = [buffers.take(10) for _ in range(KEPT)]
    large = buffers.take(5000)
    origin = large.obj
    held += [buffers.take(10) for _ in range(KEPT)]
    del large
    assert buffers.take(5000).obj is origin


def test_a_buffer_that_is_too_small_is_not_taken() -> None:
    buffers = Buffers()
    origin = buffers.take(10).obj
    assert buffers.take(11).obj is not origin
