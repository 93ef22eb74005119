from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.weights.template_trial import CONVERSATIONS, trial
from tests.weights.ir_folder import TEMPLATE, make_ir_folder

pytestmark = [pytest.mark.openvino, pytest.mark.slow]


def test_each_conversation_is_measured(tmp_path: Path) -> None:
    found = trial(make_ir_folder(tmp_path / "m"))
    assert found["template"]
    assert found["refusal"] == ""
    assert found["tokens"] > 0
    lengths = found["lengths"]
    assert len(lengths) == len(CONVERSATIONS)
    for conversation, (before, after) in zip(CONVERSATIONS, lengths, strict=True):
        assert before == sum(len(content) for _, content in conversation)
        frame = sum(len(f"{role}: <|im_end|>") for role, _ in conversation)
        assert after == before + frame
    assert "<|im_end|>" in TEMPLATE
