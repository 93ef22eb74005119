"""What the constants of a model in memory are, against an index of the whole that it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from meshinfer.errors import StageFailed
from meshinfer.weights.constants import Constant, scan
from meshinfer.weights.cut import read_model
from meshinfer.weights.piece_index import piece_index
from meshinfer.weights.progress import untold
from meshinfer.weights.stage_weights import StageConstant, match

pytestmark = pytest.mark.openvino

LARGE = 128 * 1024  # elements of u8


def weights(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, LARGE, np.uint8)


def model(*named: tuple[str, Any]) -> Any:
    """One result a constant, in order."""
    results = []
    for name, data in named:
        constant = ops.constant(data)
        constant.set_friendly_name(name)
        results.append(ops.result(constant))
    return ov.Model(results, [], "m")


def saved(tmp_path: Path, *named: tuple[str, Any]) -> Path:
    ov.save_model(model(*named), tmp_path / "whole.xml", compress_to_fp16=False)
    return tmp_path / "whole.xml"


def constants_of(made: Any, tmp_path: Path) -> tuple[Constant, ...]:
    ov.serialize(made, tmp_path / "stage.xml", tmp_path / "stage.bin")
    return scan((tmp_path / "stage.xml").read_bytes())


def matched(made: Any, xml: Path) -> dict[str, StageConstant]:
    constants = constants_of(made, xml.parent)
    found = match(made, constants, piece_index(xml, untold))
    return {constant.name: one for constant, one in zip(constants, found, strict=True)}


def test_weights_that_are_mapped_are_told_by_their_place(tmp_path: Path) -> None:
    small = np.arange(3, dtype=np.int64)
    xml = saved(tmp_path, ("a", weights(0)), ("s", small), ("b", weights(1)))
    found = matched(read_model(xml), xml)
    whole = {one.name: one for one in scan(xml.read_bytes())}
    assert found["a"].origin == whole["a"].offset
    assert found["b"].origin == whole["b"].offset
    assert found["s"].content.key == small.tobytes()
    assert found["s"].origin is None


def test_weights_are_told_by_their_bytes_where_nothing_is_mapped(tmp_path: Path) -> None:
    xml = saved(tmp_path, ("a", weights(0)), ("b", weights(1)))
    found = matched(model(("b", weights(0)), ("x", weights(1))), xml)
    offsets = [one.offset for one in scan(xml.read_bytes())]
    assert [one.origin for one in found.values()] == offsets
    assert all(one.own is None for one in found.values())


def test_a_name_of_the_whole_with_other_bytes_is_not_believed(tmp_path: Path) -> None:
    xml = saved(tmp_path, ("a", weights(0)), ("b", weights(1)))
    read = read_model(xml)
    changed = ops.constant(weights(7))
    changed.set_friendly_name("b")
    made = ov.Model([*read.get_results()[:1], ops.result(changed)], [], "m")
    found = matched(made, xml)
    assert found["a"].origin is not None
    assert found["b"].origin is None
    assert found["b"].own is not None
    assert bytes(found["b"].own) == weights(7).tobytes()


def test_equal_weights_are_one_content(tmp_path: Path) -> None:
    xml = saved(tmp_path, ("a", weights(0)))
    found = matched(model(("x", weights(5)), ("y", weights(5))), xml)
    assert found["x"].content == found["y"].content


def test_two_constants_of_one_name_are_refused(tmp_path: Path) -> None:
    xml = saved(tmp_path, ("a", weights(0)))
    with pytest.raises(StageFailed, match="2 constants of the stage are named 'k'"):
        matched(model(("k", weights(0)), ("k", weights(1))), xml)


@pytest.mark.parametrize("kind", ["u4", "i4", "u1", "nf4", "bf16", "f8e4m3", "boolean", "f16"])
def test_every_type_gives_the_bytes_that_openvino_saves(tmp_path: Path, kind: str) -> None:
    tensor = ov.Tensor(getattr(ov.Type, kind), ov.Shape([3, 5]))
    tensor.data.view(np.uint8)[...] = 1
    xml = saved(tmp_path, ("a", weights(0)))
    found = matched(model(("t", tensor)), xml)["t"]
    assert found.content.key == (tmp_path / "stage.bin").read_bytes()


def test_a_constant_without_elements_has_the_byte_that_openvino_writes(tmp_path: Path) -> None:
    xml = saved(tmp_path, ("a", weights(0)))
    found = matched(model(("e", np.zeros((0, 4), np.float32))), xml)["e"]
    assert found.content.key == b"\0"
