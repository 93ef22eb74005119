from __future__ import annotations

from collections import Counter

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from meshinfer.weights.unique_names import make_names_unique


def model_with(names: list[str]) -> ov.Model:
    """A sum of as many constants."""
    start = ops.parameter([1], np.float32, name="weight")
    start.set_friendly_name("weight")
    total = start.output(0)
    for number, name in enumerate(names):
        constant = ops.constant(np.float32([number]))
        constant.set_friendly_name(name)
        total = ops.add(total, constant).output(0)
    return ov.Model([ops.result(total)], [start], "names")


def constants(model: ov.Model) -> list[str]:
    nodes = model.get_ordered_ops()
    return [node.get_friendly_name() for node in nodes if node.get_type_name() == "Constant"]


def test_every_operation_has_a_name_of_its_own() -> None:
    model = model_with(["weight", "bias", "bias", "bias#2", "bias"])
    assert make_names_unique(model) == 3
    names = Counter(node.get_friendly_name() for node in model.get_ops())
    assert set(names.values()) == {1}
    assert model.get_parameters()[0].get_friendly_name() == "weight"
    assert {"bias", "bias#2", "bias#3", "bias#4", "weight#2"} == set(constants(model))


def test_equal_models_get_equal_names_and_good_ones_stay() -> None:
    first, second = (model_with(["a", "a", "b"]) for _ in range(2))
    make_names_unique(first)
    make_names_unique(second)
    assert constants(first) == constants(second)
    assert make_names_unique(first) == 0
