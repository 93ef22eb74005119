"""SmolLM2-135M with real weights: by range it is what it is whole, and it speaks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from meshinfer.core.ids import ModelId
from meshinfer.core.request import ChatMessage
from meshinfer.engine.tokenizer import GenAiTokenizer
from meshinfer.weights.catalogue import Catalogue
from meshinfer.weights.export.run import export_checkpoint
from meshinfer.weights.export.tokenizer import load_tokenizer
from meshinfer.weights.progress import untold
from meshinfer.weights.recipe import Recipe
from meshinfer.weights.wheels import fetch
from tests.export.exported import constants, export_whole, logits
from tools.benches.half_precision import make_half

pytestmark = [pytest.mark.slow, pytest.mark.openvino]

RECIPE = Recipe(group_size=64)
TWELVE_LAYERS = 90 << 20


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    default = Path.home() / ".cache" / "meshinfer-test" / "export"
    folder = Path(os.environ.get("MESHINFER_TEST_EXPORT", default))
    gguf = fetch(Catalogue.load().find(ModelId("smollm2-135m")), folder / "gguf", untold)
    return make_half(gguf, folder / "smollm2-135m")


def test_real_weights_are_exported_by_range_as_they_are_whole(
    checkpoint: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    facts = export_checkpoint(checkpoint, work, RECIPE, untold, TWELVE_LAYERS)
    ranged = work / "openvino_model.xml"
    whole = export_whole(checkpoint, tmp_path / "whole", RECIPE)
    assert constants(ranged) == constants(whole)
    assert np.array_equal(logits(ranged), logits(whole))
    assert facts.stop_tokens == (0, 2)

    ours, theirs = GenAiTokenizer.load(work), load_tokenizer(checkpoint)
    message = "Write 3 words about 2026: Größe, 你好!"
    expected = theirs.apply_chat_template(
        [{"role": "user", "content": message}], add_generation_prompt=True, return_dict=False
    )
    assert ours.encode_chat([ChatMessage("user", message)]) == expected
    ids = ours.encode_text(message)
    text = b"".join(ours.vocabulary()[token] for token in ids).decode()
    assert text == message
    assert "Ġ" not in text
