"""The claim on cuts, on random models: a chain of stages is the whole model, bit by bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.weights.chain import logits, parts, unit_count, whole
from tests.weights.tiny import tiny_model
from tests.weights.tiny_shared import tiny_shared


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of tiny_model or tiny_shared."""
    kv_heads = draw(st.sampled_from([1, 2, 4]))
    common = {
        "layers": draw(st.integers(1, 6)),
        "heads": 4,
        "kv_heads": kv_heads,
        "vocabulary": draw(st.sampled_from([64, 96, 256])),
        "tied": draw(st.booleans()),
        "style": draw(st.sampled_from(["genai", "optimum"])),
        "scale": draw(st.sampled_from([1.0, 9.797959])),
        "seed": draw(st.integers(0, 3)),
    }
    if draw(st.booleans()):
        return {**common, "parallel": draw(st.booleans()), "uneven": draw(st.booleans())}
    shared = draw(st.integers(0, common["layers"]))
    return {**common, "shared": shared, "front": draw(st.sampled_from([0, 8]))}


def built(arguments: dict[str, Any]) -> ov.Model:
    return tiny_shared(**arguments) if "shared" in arguments else tiny_model(**arguments)


@pytest.mark.openvino
@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models(), st.data())
def test_a_chain_of_stages_equals_the_whole(arguments: dict[str, Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "openvino_model.xml"
        ov.save_model(built(arguments), xml, compress_to_fp16=False)
        inner = st.integers(1, unit_count(xml) - 1)
        borders = sorted(data.draw(st.sets(inner, min_size=1, max_size=4)))
        prompt = np.array([1, 9, 19, 17, 14, 60, 5], np.int64)
        expected = logits(whole(xml), prompt, 2)
        assert np.array_equal(logits(parts(xml, borders), prompt, 2), expected)
