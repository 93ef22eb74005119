"""OpenVINO's messages lose their source paths and keep their sentence."""

from __future__ import annotations

import pytest

from meshinfer.engine.openvino_error import openvino_errors, reason
from meshinfer.errors import StageFailed

MESSAGE = """Exception from src/inference/src/cpp/core.cpp:112:
Check 'false' failed at src/core/src/pass/sdpa_to_paged_attention.cpp:40:
[ GENERAL_ERROR ]
No ScaledDotProductAttention operation observed in the graph
"""


def test_the_sentence_stays() -> None:
    assert (
        reason(RuntimeError(MESSAGE))
        == "No ScaledDotProductAttention operation observed in the graph"
    )


@pytest.mark.parametrize("text", ["", "Exception from a.cpp:1:\n"])
def test_an_empty_message_says_something(text: str) -> None:
    assert reason(RuntimeError(text))


def test_a_long_message_is_cut() -> None:
    assert len(reason(RuntimeError("x" * 10_000))) == 300


@pytest.mark.parametrize("kind", [RuntimeError, TypeError, ValueError])
def test_they_become_stage_failed_with_the_cause_kept(kind: type[Exception]) -> None:
    error = kind(MESSAGE)
    with (
        pytest.raises(StageFailed, match="Paging failed: No Scaled") as caught,
        openvino_errors("Paging", "Choose another model."),
    ):
        raise error
    assert caught.value.__cause__ is error
    assert caught.value.remedy == "Choose another model."


def test_our_own_errors_pass() -> None:
    with pytest.raises(StageFailed, match="ours"), openvino_errors("Paging", ""):
        raise StageFailed("ours")
