from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.errors import ShardCorrupt, StageFailed
from meshinfer.weights.gguf import convert, read_facts
from meshinfer.weights.gguf_header import GgufHeader, TensorInfo, read_header
from tests.weights.gguf_writer import F32, LLAMA, Q4_0, Q5_0, gguf_bytes


def _header(*tensors: tuple[str, int], **changes: Any) -> GgufHeader:
    metadata = {**LLAMA, **{key.replace("__", "."): value for key, value in changes.items()}}
    table = tuple(TensorInfo(name, (64, 64), kind) for name, kind in tensors)
    kept = {key: value for key, value in metadata.items() if value is not None}
    return GgufHeader(
        {key: tuple(value) if isinstance(value, list) else value for key, value in kept.items()},
        table,
    )


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


@pytest.mark.parametrize("key", ["tokens", "token_type"])
@pytest.mark.parametrize("value", [7, 1.5, "text", True])
def test_a_vocabulary_that_is_no_list_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ShardCorrupt, match="no list of tokens"):
        read_facts(_header(**{f"tokenizer__ggml__{key}": value}))


@given(noise=st.binary(min_size=1, max_size=40), where=st.integers(0, 700))
def test_any_damage_of_a_file_is_refused_or_gives_facts_of_the_right_kinds(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, where: int
) -> None:
    data = bytearray(gguf_bytes(LLAMA, [("token_embd.weight", [64, 256], Q4_0)]))
    data[where : where + len(noise)] = noise
    path = tmp_path_factory.mktemp("damage") / "m.gguf"
    path.write_bytes(data)
    with contextlib.suppress(ShardCorrupt, StageFailed):  # anything else fails the test
        facts = read_facts(read_header(path))
        assert facts.context_length > 0
        assert facts.stop_tokens
        assert all(token >= 0 for token in facts.stop_tokens)


def test_a_refused_file_is_left_alone(tmp_path: Path) -> None:
    data = gguf_bytes({**LLAMA, "general.architecture": "mamba"})
    (tmp_path / "m.gguf").write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(StageFailed, match="mamba"):
        convert(tmp_path / "m.gguf", tmp_path / "out")
    assert (tmp_path / "m.gguf").read_bytes() == data
    assert list((tmp_path / "out").iterdir()) == []
