"""SmolLM2 through the project's own pull: what no tiny model can show."""

from __future__ import annotations

import numpy as np
import pytest

from meshinfer.core.model import UnitKind
from meshinfer.weights.folder import ModelFolder, verify_folder
from meshinfer.weights.obtain import catalogue_source
from meshinfer.weights.prepare import prepare
from meshinfer.weights.progress import Progress
from tests.weights.chain import Array, logits, parts, whole

pytestmark = [pytest.mark.openvino, pytest.mark.slow]

PROMPT = np.array([1, 93, 198, 1780, 314, 260, 75, 282, 49, 47, 2, 198, 1, 520, 91, 198], np.int64)


@pytest.fixture(scope="module")
def expected(smollm2: ModelFolder) -> Array:
    return logits(whole(smollm2.xml), PROMPT, 6)


@pytest.mark.parametrize("borders", [[31], [30], [20, 41], [1, 12, 25, 61]])
def test_two_three_and_five_stages_are_exact(
    smollm2: ModelFolder, expected: Array, borders: list[int]
) -> None:
    """At layers, inside one, and with embedding and tied head by themselves (C02)."""
    assert np.array_equal(logits(parts(smollm2.xml, borders), PROMPT, 6), expected)


def test_the_description_of_a_real_model(smollm2: ModelFolder) -> None:
    shape = smollm2.shape
    assert (shape.layers, len(shape.units), shape.hidden_size) == (30, 62, 576)
    assert (shape.vocabulary_size, shape.context_length) == (49152, 8192)
    assert 2 in smollm2.stop_tokens  # <|im_end|>
    attentions = [unit for unit in shape.units if unit.kind is UnitKind.ATTENTION]
    assert {unit.cache_bytes_per_token for unit in attentions} == {2 * 3 * 64 * 4}
    # The head is the embedding: both carry the matrix.
    assert shape.units[-1].weight_bytes > 28_000_000
    assert shape.units[0].weight_bytes > 28_000_000


def test_what_is_prepared_is_whole_and_stays(smollm2: ModelFolder) -> None:
    verify_folder(smollm2)
    told: list[Progress] = []
    again = prepare(catalogue_source("smollm2-135m"), smollm2.path.parent, None, told.append)
    assert again == smollm2
    assert told == []
