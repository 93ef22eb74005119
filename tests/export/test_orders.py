from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.errors import DiskFull, MeshInferError, NotEnoughMemory, ShardCorrupt, StageFailed
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.export.orders import News, Order
from meshinfer.weights.facts import ModelFacts
from meshinfer.weights.recipe import Recipe, WeightFormat

SPANS = (LayerSpan(0, 2), LayerSpan(2, 5))


def test_an_order_arrives_as_it_was() -> None:
    order = Order(
        checkpoint=Path("a") / "Größe",
        work=Path("b"),
        recipe=Recipe(WeightFormat.INT4_ASYM, 64, awq=True),
        key='with "quotes"\nand lines',
        spans=SPANS,
        wanted=SPANS[1:],
        with_tokenizer=True,
        most_memory=1 << 40,
    )
    assert "\n" not in order.to_line()
    assert Order.from_line(order.to_line()) == order


def test_news_arrive_as_they_were() -> None:
    facts = ModelFacts("llama", 512, (1, 2), None, "{{ x }}\n", "int4 group 128", "")
    for news in (News(made=SPANS[0]), News(facts=facts)):
        assert "\n" not in news.to_line()
        assert News.from_line(news.to_line()) == news


@pytest.mark.parametrize("kind", [StageFailed, ShardCorrupt, DiskFull, NotEnoughMemory])
def test_an_error_keeps_kind_cause_and_remedy(kind: type[MeshInferError]) -> None:
    arrived = News.from_line(News(error=kind("It broke.", "Mend it.")).to_line()).error
    assert type(arrived) is kind
    assert str(arrived) == "It broke. Mend it."
