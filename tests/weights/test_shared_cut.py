"""Several tensors cross: every cut of a model whose layers share, exact at f32 and bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from meshinfer.core.model import UnitRange
from meshinfer.node.verify import verify
from meshinfer.weights.cut import cut, read_model
from meshinfer.weights.cut_points import find_units
from meshinfer.weights.progress import untold
from meshinfer.weights.split import split
from meshinfer.weights.store import Store
from tests.weights.chain import PagedPart, logits, parts, unit_count, whole
from tests.weights.model_folder import make_model_folder
from tests.weights.tiny import tiny_model
from tests.weights.tiny_shared import tiny_shared

pytestmark = pytest.mark.openvino

PROMPT = np.array([1, 93, 198, 178, 14, 60, 75, 82, 49, 47, 2], np.int64)


def saved(model: ov.Model, folder: Path) -> Path:
    xml = folder / "openvino_model.xml"
    ov.save_model(model, xml, compress_to_fp16=False)
    return xml


@pytest.fixture(scope="module")
def shared_xml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tiny_shared(layers=4, shared=2), tmp_path_factory.mktemp("shared"))


def test_a_stage_that_shares_keeps_a_cache_of_its_own(shared_xml: Path) -> None:
    """The last layer reads the cache of the second: its stage has that state and writes it."""
    units = find_units(read_model(shared_xml))
    owner, sharer = units[4], units[10]
    assert owner.unit.layer == 1
    assert sharer.unit.layer == 3
    assert owner.variables == sharer.variables
    stage = cut(shared_xml, UnitRange(10, 11))
    kept = {str(sink.get_variable_id()) for sink in stage.get_sinks()}
    assert kept == set(sharer.variables)
    assert len(stage.get_sinks()) == 2
    width = units[9].unit.crossing_width
    assert str(stage.input("inputs_embeds").get_partial_shape()) == f"[?,?,{width}]"
    assert stage.output().get_partial_shape()[2].get_length() == units[10].unit.crossing_width


def test_the_sharing_stage_does_not_carry_the_projections_of_the_owner(shared_xml: Path) -> None:
    units = find_units(read_model(shared_xml))
    projections = 2 * 32 * 64 * 4
    difference = units[4].unit.weight_bytes - units[10].unit.weight_bytes
    assert projections <= difference <= projections + 512


@pytest.mark.slow
@pytest.mark.parametrize("style", ["genai", "optimum"])
def test_every_cut_of_a_model_that_shares_is_exact(style: Any, tmp_path: Path) -> None:
    xml = saved(tiny_shared(layers=4, shared=2, style=style), tmp_path)
    expected = logits(whole(xml), PROMPT, 3)
    count = unit_count(xml)
    for border in range(1, count):
        assert np.array_equal(logits(parts(xml, [border]), PROMPT, 3), expected), border
    assert np.array_equal(logits(parts(xml, range(1, count)), PROMPT, 3), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        tiny_shared(layers=4, shared=2, scale=9.797959),
        tiny_shared(layers=3, shared=1, again=True, tied=False),
        tiny_model(layers=2, scale=9.797959),
        tiny_model(layers=2, parallel=True),
    ],
    ids=["shared", "embedding read again", "scaled and tied", "parallel"],
)
def test_the_engine_that_ships_computes_them_in_both_precisions(
    model: ov.Model, tmp_path: Path
) -> None:
    """At bf16 it depends on where the plugin rounds: what crosses, and what is scaled, must be
    rounded in a stage exactly where it is in the whole model."""
    xml = saved(model, tmp_path)
    count = unit_count(xml)
    every = tuple(UnitRange(unit, unit + 1) for unit in range(count))
    third, half = count // 3, count // 2
    thirds = (UnitRange(0, third), UnitRange(third, half), UnitRange(half, count))
    report = verify(xml, steps=4, sequences=2, cuts=[every, thirds], threads=1)
    assert "f32" in {check.precision for check in report.checks}
    assert report.difference == 0.0
    assert report.notes == ()


@pytest.mark.slow
def test_stages_from_the_store_are_exact_as_well(tmp_path: Path) -> None:
    """Described, split, kept as outlines and put together again."""
    xml = saved(tiny_shared(layers=4, shared=2), tmp_path)
    folder = make_model_folder(tmp_path / "models", xml)
    count = len(folder.shape.units)
    assert folder.shape.units[-1].shared[0].unit == 0
    store = Store(tmp_path / "store")
    ranges = [UnitRange(0, 5), UnitRange(5, 10), UnitRange(10, count)]
    chain = []
    for units, manifest in zip(ranges, split(folder, ranges, store, untold), strict=True):
        stage = store.assemble(manifest.digest, lambda done, total: None) / "openvino_model.xml"
        width = folder.shape.input_width(units)
        model = read_model(stage)
        if width:
            assert str(model.input("inputs_embeds").get_partial_shape()) == f"[?,?,{width}]"
        chain.append(PagedPart(model))
    assert np.array_equal(logits(chain, PROMPT, 3), logits(whole(xml), PROMPT, 3))
