from __future__ import annotations

from pathlib import Path
from typing import Any

import nncf
import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from meshinfer.weights.export.compression import compress, halve
from meshinfer.weights.recipe import Recipe, WeightFormat


def two_products(*widths: int) -> Any:
    """A row of products with random weights, [widths[i], widths[i + 1]] each."""
    random = np.random.default_rng(0)
    value = entry = ops.parameter([-1, widths[0]], np.float32, name="x")
    for number, (rows, columns) in enumerate(zip(widths, widths[1:], strict=False)):
        weights = random.standard_normal((columns, rows)).astype(np.float16)
        constant = ops.constant(weights)
        constant.set_friendly_name(f"w{number}")
        value = ops.matmul(value, ops.convert(constant, "f32"), False, True)
    return ov.Model([ops.result(value)], [entry], "products")


def kinds(model: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each weight's codes."""
    return {
        node.get_friendly_name(): (
            node.get_element_type().get_type_name(),
            tuple(node.get_output_shape(0)),
        )
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Constant" and node.get_friendly_name() in ("w0", "w1", "w2")
    }


def test_the_last_product_is_kept_in_8_bits() -> None:
    found = kinds(compress(two_products(128, 64, 32), Recipe(WeightFormat.INT4, 64)))
    assert found["w0"] == ("i4", (64, 2, 64))
    assert found["w1"] == ("u8", (32, 64))


@pytest.mark.parametrize(
    ("columns", "codes"),
    [
        (256, ("i4", (64, 2, 128))),  # divided by the group
        (192, ("i4", (64, 3, 64))),  # the largest power of two that divides it
        (48, ("i4", (64, 3, 16))),
        (40, ("u8", (64, 40))),  # no group of at least 16
    ],
)
def test_a_row_that_the_group_does_not_divide_gets_a_smaller_one(
    columns: int, codes: tuple[str, tuple[int, ...]]
) -> None:
    assert kinds(compress(two_products(columns, 64, 32), Recipe(WeightFormat.INT4)))["w0"] == codes


@pytest.mark.parametrize(
    ("form", "codes"),
    [
        (WeightFormat.INT4_ASYM, "u4"),
        (WeightFormat.INT8, "u8"),
        (WeightFormat.F16, "f16"),
        (WeightFormat.BF16, "f16"),  # the types of numbers are the loader's business
        (WeightFormat.ORIGINAL, "f16"),
    ],
)
def test_each_format_gives_its_type(form: WeightFormat, codes: str) -> None:
    assert kinds(compress(two_products(128, 64, 32), Recipe(form)))["w0"][0] == codes


@pytest.mark.parametrize(("kind", "bits"), [("f16", 13), ("bf16", 16)])
def test_widened_weights_are_halved_where_no_bit_is_lost(kind: str, bits: int) -> None:
    random = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    exact = (random.view(np.uint32) >> bits << bits).view(np.float32)
    for values, is_halved in ((exact, True), (random, False)):
        entry = ops.parameter([-1, 64], np.float32, name="x")
        product = ops.matmul(entry, ops.constant(values), False, True)
        model = ov.Model([ops.result(product)], [entry], "one")
        before = ov.Core().compile_model(model, "CPU")(np.eye(64, dtype=np.float32))[0]
        assert halve(model, kind) is is_halved
        types = {
            node.get_element_type().get_type_name()
            for node in model.get_ordered_ops()
            if node.get_type_name() == "Constant"
        }
        assert types == ({kind} if is_halved else {"f32"})
        after = ov.Core().compile_model(model, "CPU")(np.eye(64, dtype=np.float32))[0]
        assert np.array_equal(before, after)


def test_it_is_nncf_with_its_defaults_where_the_group_divides(tmp_path: Path) -> None:
    ours = compress(two_products(256, 128, 64), Recipe(WeightFormat.INT4))
    theirs = nncf.compress_weights(
        two_products(256, 128, 64), mode=nncf.CompressWeightsMode.INT4_SYM, ratio=1.0
    )
    for name, model in (("ours", ours), ("theirs", theirs)):
        ov.save_model(model, tmp_path / f"{name}.xml", compress_to_fp16=False)
    assert (tmp_path / "ours.bin").read_bytes() == (tmp_path / "theirs.bin").read_bytes()
