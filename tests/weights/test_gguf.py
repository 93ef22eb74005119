from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshinfer.errors import StageFailed
from meshinfer.weights.gguf import convert, read_facts
from meshinfer.weights.gguf_header import GgufHeader, TensorInfo
from tests.weights.gguf_writer import F32, LLAMA, Q4_0, Q5_0, gguf_bytes


def _header(*tensors: tuple[str, int], **changes: Any) -> GgufHeader:
    metadata = {**LLAMA, **{key.replace("__", "."): value for key, value in changes.items()}}
    table = tuple(TensorInfo(name, (64, 64), kind) for name, kind in tensors)
    return GgufHeader({key: value for key, value in metadata.items() if value is not None}, table)


def test_the_facts_that_the_graph_lacks() -> None:
    facts = read_facts(_header(("token_embd.weight", Q4_0), ("norm", F32)))
    assert facts.context_length == 2048
    assert facts.stop_tokens == (2, 4)  # eos, and the end of a turn
    assert facts.bos == 1
    assert facts.architecture == "llama"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"llama__rope__scaling__type": "yarn"}, r"scales its rotary positions \(yarn\)"),
        ({"llama__rope__scaling__type": "linear"}, "scales its rotary"),
        ({"llama__rope__scaling__factor": 4.0}, "scales its rotary"),
        ({"llama__rope__scale_linear": 2.0}, "scales its rotary"),
        ({"llama__expert_count": 8}, "mixture of experts"),
        ({"llama__attention__sliding_window": 512}, "sliding window of 512"),
        ({"general__architecture": "gemma3"}, "does not know the architecture 'gemma3'"),
        ({"general__architecture": None}, "does not know the architecture ''"),
        ({"llama__context_length": None}, "how long the model's context is"),
    ],
)
def test_what_the_reader_would_compute_wrongly_is_refused(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(StageFailed, match=why):
        read_facts(_header(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"llama__rope__scaling__type": "none"},
        {"llama__rope__scaling__factor": 1.0},
        {"llama__attention__sliding_window": 2048},
        {"llama__expert_count": 0},
    ],
)
def test_settings_that_change_nothing_are_let_pass(changes: dict[str, Any]) -> None:
    assert read_facts(_header(**changes)).context_length == 2048


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (("rope_freqs.weight", F32), "scales its rotary positions"),
        (("token_embd.weight", Q5_0), "holds Q5_0 tensors"),
        (("token_embd.weight", 19), "holds type 19 tensors"),
    ],
)
def test_tensors_that_the_reader_does_not_read_are_named(tensor: tuple[str, int], why: str) -> None:
    with pytest.raises(StageFailed, match=why):
        read_facts(_header(tensor))


def test_a_model_that_never_ends_is_refused() -> None:
    header = _header(
        tokenizer__ggml__eos_token_id=None,
        tokenizer__ggml__token_type=[1, 1, 1, 1, 1],
    )
    with pytest.raises(StageFailed, match="no token that ends an answer"):
        read_facts(header)


def test_a_refused_file_is_left_alone(tmp_path: Path) -> None:
    data = gguf_bytes({**LLAMA, "general.architecture": "mamba"})
    (tmp_path / "m.gguf").write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(StageFailed, match="mamba"):
        convert(tmp_path / "m.gguf", tmp_path / "out")
    assert (tmp_path / "m.gguf").read_bytes() == data
    assert list((tmp_path / "out").iterdir()) == []
