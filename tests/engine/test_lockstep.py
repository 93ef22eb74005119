"""In deterministic mode a token's numbers do not depend on its company, bit for bit (C17)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from meshinfer.core.model import UnitRange
from meshinfer.core.step import Row, Step
from meshinfer.engine.blocks import BlockTable
from meshinfer.engine.lockstep import WIDTH, padded, slices
from meshinfer.engine.paged import PagedStage, StageOptions
from meshinfer.weights.cut import cut


def test_every_token_is_a_sequence_of_its_own() -> None:
    table = BlockTable(20, 4).placed([Row(1, 0, 6, 0)]).table
    rows = (Row(1, 6, 3, 1), Row(2, 0, 7, 1))
    placement = table.placed(rows)
    first, second = slices(Step(0, rows, tuple(range(10))), placement.chains, 4, spare_block=99)
    assert (first.first, first.count, second.first, second.count) == (0, WIDTH, WIDTH, 2)
    one, two = (chain.blocks for chain in placement.chains)
    assert first.arrays.position_ids.tolist() == [6, 7, 8, 0, 1, 2, 3, 4]
    assert first.arrays.past_lens.tolist() == [6, 7, 8, 0, 1, 2, 3, 4]
    assert first.arrays.subsequence_begins.tolist() == list(range(WIDTH + 1))
    assert first.arrays.block_indices.tolist() == [
        *one[:2], *one[:2], *one[:3], *two[:1] * 4, *two[:2]
    ]  # fmt: skip
    assert int(first.arrays.max_context_len) == 9
    assert second.arrays.block_indices.tolist() == [*two[:2], *two[:2], *[99] * 6]
    values = np.arange(10)
    assert padded(values, second).tolist() == [8, 9, 0, 0, 0, 0, 0, 0]


class Chain:
    """Stages called one after another."""

    def __init__(self, folder: Path, borders: list[int]) -> None:
        options = StageOptions(deterministic=True, cache_tokens=2048)
        xml = folder / "openvino_model.xml"
        ranges = [UnitRange(a, b) for a, b in zip([0, *borders], [*borders, 62], strict=True)]
        self.stages = [PagedStage.load(cut(xml, units), options) for units in ranges]

    def run(self, *rows: Row, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        hidden = None
        for stage in self.stages:
            hidden = stage.forward(Step(0, rows, tokens), hidden)
        return np.array(hidden)


PROMPT = tuple((37 * index) % 4000 + 100 for index in range(45))


@pytest.mark.openvino
@pytest.mark.slow
def test_alone_and_in_company_in_one_piece_and_in_many(smollm2: Path) -> None:
    chain = Chain(smollm2, [])
    alone = [chain.run(Row(1, 0, 45, 1), tokens=PROMPT)]
    alone += [chain.run(Row(1, 45 + n, 1, 1), tokens=(500 + n,)) for n in range(6)]
    # chunks of other sizes, beside a neighbour that decodes and one that begins
    other = tuple(reversed(PROMPT))
    chain.run(Row(2, 0, 45, 0), tokens=other)
    chain.run(Row(3, 0, 7, 0), Row(2, 45, 1, 1), tokens=(*PROMPT[:7], 9))
    chain.run(Row(2, 46, 1, 1), Row(3, 7, 30, 0), tokens=(8, *PROMPT[7:37]))
    company = [chain.run(Row(3, 37, 8, 1), tokens=PROMPT[37:])]
    for n in range(6):
        rows = (Row(2, 47 + n, 1, 1), Row(3, 45 + n, 1, 1))
        company.append(chain.run(*rows, tokens=(7, 500 + n))[1:])
    for lone, shared in zip(alone, company, strict=True):
        assert np.abs(lone - shared).max() == 0.0
    # several tokens at once, as a verification of drafts would: each logit row the same
    rows = chain.run(Row(3, 45, 6, 6), tokens=tuple(range(500, 506)))
    for lone, drafted in zip(alone[1:], rows, strict=True):
        assert np.abs(lone[0] - drafted).max() == 0.0


@pytest.mark.openvino
@pytest.mark.slow
def test_with_any_split(smollm2: Path) -> None:
    whole, split = Chain(smollm2, []), Chain(smollm2, [1, 20, 33, 61])
    for chunk in ((0, 45), (45, 46)):
        first, end = chunk
        row, tokens = Row(1, first, end - first, 1), (*PROMPT, 5)[first:end]
        assert np.abs(whole.run(row, tokens=tokens) - split.run(row, tokens=tokens)).max() == 0.0
