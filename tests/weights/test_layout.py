from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.model import PIECE_BYTES
from meshinfer.errors import StageFailed
from meshinfer.weights.layout import ALIGNMENT, LARGE_BYTES, Content, Layout, lay_out, padded
from meshinfer.weights.manifest import MAX_PIECES, MAX_SEGMENTS

SMALL = st.binary(min_size=1, max_size=200).map(lambda data: Content(data, len(data)))
LARGE = st.tuples(st.integers(0, 5), st.integers(LARGE_BYTES, 3 * PIECE_BYTES)).map(
    lambda drawn: Content(bytes([drawn[0]]) + drawn[1].to_bytes(8, "big"), drawn[1])
)
CONTENTS = st.lists(SMALL | LARGE, max_size=30)


def spans(contents: list[Content], layout: Layout) -> dict[int, Content]:
    """Where each different content begins."""
    return dict(zip(layout.offsets, contents, strict=True))


@given(CONTENTS)
def test_every_constant_has_its_bytes_and_shares_them_with_no_other(
    contents: list[Content],
) -> None:
    layout = lay_out(contents)
    ends = 0
    for offset, content in sorted(spans(contents, layout).items()):
        assert offset == ends
        assert offset % ALIGNMENT == 0
        ends = offset + padded(content.size)
        if not content.large:
            assert layout.small[offset : offset + content.size] == content.key
    assert ends == sum(layout.segments)
    for content, offset in zip(contents, layout.offsets, strict=True):
        assert spans(contents, layout)[offset] == content


@given(CONTENTS)
def test_a_large_constant_is_a_segment(contents: list[Content]) -> None:
    layout = lay_out(contents)
    sizes = [padded(contents[number].size) for number in layout.large]
    first = [len(layout.small)] if layout.small else []
    assert list(layout.segments) == first + sizes
    begin = len(layout.small)
    for number, size in zip(layout.large, sizes, strict=True):
        assert layout.offsets[number] == begin
        begin += size


@given(CONTENTS)
def test_the_order_is_that_of_the_constants(contents: list[Content]) -> None:
    layout = lay_out(contents)
    assert list(layout.large) == sorted(layout.large)
    assert lay_out(contents) == layout


def test_nothing_is_laid_out_as_nothing() -> None:
    assert lay_out([]) == Layout((), b"", (), ())


def test_small_bytes_that_look_like_digests_are_no_large_constant() -> None:
    digests = bytes(32)
    layout = lay_out([Content(digests, LARGE_BYTES), Content(digests, 32)])
    assert layout.offsets == (64, 0)


@pytest.mark.parametrize(
    ("count", "size"), [(MAX_SEGMENTS + 1, LARGE_BYTES), (8, MAX_PIECES // 8 * PIECE_BYTES)]
)
def test_more_than_a_manifest_may_name_is_refused(count: int, size: int) -> None:
    contents = [Content(number.to_bytes(8, "big"), size) for number in range(count)]
    with pytest.raises(StageFailed, match="Cut the model into more stages"):
        lay_out(contents)
