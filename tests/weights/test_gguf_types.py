from __future__ import annotations

import gguf
import numpy as np
import pytest

from meshinfer.weights.gguf_types import (
    AS_READ,
    is_fine,
    is_known,
    real_values,
    row_bytes,
    type_name,
)

KIND = gguf.GGMLQuantizationType


@pytest.mark.parametrize(
    ("kind", "columns", "size"),
    [(0, 3, 12), (1, 3, 6), (30, 3, 6), (2, 64, 36), (3, 64, 40), (6, 32, 22), (12, 256, 144)],
)
def test_bytes_of_a_row(kind: int, columns: int, size: int) -> None:
    assert row_bytes(kind, columns) == size


@pytest.mark.parametrize(("kind", "columns"), [(2, 33), (12, 128), (999, 32)])
def test_a_row_that_blocks_do_not_fill_is_refused(kind: int, columns: int) -> None:
    with pytest.raises(ValueError, match=r"blocks of|999"):
        row_bytes(kind, columns)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_values_come_back_as_ggml_computes_them(name: str) -> None:
    kind = KIND[name]
    real = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    data = gguf.quants.quantize(real, kind)
    expected = gguf.quants.dequantize(data, kind)
    found = real_values(np.ascontiguousarray(data).view(np.uint8), kind.value)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected)
    assert np.abs(found - real).max() < 0.3


@pytest.mark.parametrize(
    "name",
    ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "IQ1_M"],
)
def test_types_of_whole_models_are_known(name: str) -> None:
    assert is_known(KIND[name].value)


@pytest.mark.parametrize("kind", [KIND.Q8_1.value, KIND.Q8_K.value, KIND.I32.value, 4, 31, 10**6])
def test_what_nobody_has_a_formula_for_is_not(kind: int) -> None:
    assert not is_known(kind)


def test_names_are_ggmls() -> None:
    assert type_name(6) == "Q5_0"
    assert type_name(777) == "type 777"


def test_fine_types_are_those_above_five_and_a_half_bits() -> None:
    sizes = {kind: 8 * row_bytes(kind, 256) / 256 for kind in (0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30)}
    assert {kind for kind in sizes if is_fine(kind)} == {
        kind for kind, bits in sizes.items() if bits > 6
    }


def test_what_the_reader_reads_has_a_formula_too() -> None:
    assert all(is_known(kind) for kind in AS_READ)
