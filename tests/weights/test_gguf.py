from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.errors import MeshInferError, ShardCorrupt, StageFailed, UsageError
from meshinfer.weights.cut import read_model
from meshinfer.weights.cut_points import find_units
from meshinfer.weights.gguf import MODEL_FILES, convert, read_facts
from meshinfer.weights.gguf_header import GgufHeader, TensorInfo, read_header
from meshinfer.weights.progress import Progress
from meshinfer.weights.recipe import Recipe, WeightFormat
from tests.weights.gguf_models import F16, Q5_0, Q8_0, make_gguf
from tests.weights.gguf_writer import F32, LLAMA, Q4_0, gguf_bytes


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
        (("token_embd.weight", 9), "holds Q8_1 tensors"),
        (("token_embd.weight", 200), "holds type 200 tensors"),
    ],
)
def test_tensors_that_nothing_reads_are_named(tensor: tuple[str, int], why: str) -> None:
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


def test_awq_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="AWQ is not offered for GGUF"):
        convert(tmp_path / "none.gguf", tmp_path, Recipe(awq=True))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"llama__expert_count": 4}, "mixture of experts"),
        ({"llama__rope__scaling__type": "yarn"}, "scales its rotary"),
        ({"llama__attention__sliding_window": 100}, "sliding window of 100"),
        ({"llama__feed_forward_length": 32}, "ffn_gate.weight has the shape"),
        ({"llama__block_count": 4}, "no tensor blk.3"),
        ({"llama__block_count": 2}, "blk.2"),
    ],
)
def test_a_range_does_not_smuggle_past_what_the_whole_is_refused_for(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    make_gguf(tmp_path / "m.gguf", **changes)
    (tmp_path / "out").mkdir()
    with pytest.raises(MeshInferError, match=why):
        convert(tmp_path / "m.gguf", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


class _Interrupted(Exception):
    pass


@pytest.mark.openvino
@pytest.mark.slow
def test_an_interrupted_conversion_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    make_gguf(tmp_path / "m.gguf", kinds={"ffn_down": Q5_0, "attn_v": Q8_0})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    facts = convert(tmp_path / "m.gguf", whole, Recipe(), range_bytes=1)

    def interrupt(progress: Progress) -> None:
        if progress.done_bytes > progress.total_bytes // 2:
            raise _Interrupted

    with pytest.raises(_Interrupted):
        convert(tmp_path / "m.gguf", parts, Recipe(), interrupt, range_bytes=1)
    made = sorted(path.name for path in (parts / "parts").glob("*.xml"))
    assert made == ["0-1.xml", "1-2.xml"]
    told: list[Progress] = []
    again = convert(tmp_path / "m.gguf", parts, Recipe(), told.append, range_bytes=1)
    assert again == facts
    assert "KL 0.0" in again.accuracy
    assert told[-1] == Progress("convert", told[-1].total_bytes, told[-1].total_bytes)
    for folder in (whole, parts):
        assert sorted(path.name for path in folder.iterdir()) == sorted(MODEL_FILES)
    first, second = ((folder / "openvino_model.bin").read_bytes() for folder in (whole, parts))
    assert first == second


@pytest.mark.openvino
@pytest.mark.slow
def test_another_recipe_in_the_same_folder_starts_over(tmp_path: Path) -> None:
    make_gguf(tmp_path / "m.gguf", kinds={"": F16})
    out = tmp_path / "out"
    out.mkdir()

    def interrupt(progress: Progress) -> None:
        if progress.done_bytes:
            raise _Interrupted

    with pytest.raises(_Interrupted):
        convert(tmp_path / "m.gguf", out, Recipe(), interrupt, range_bytes=1)
    facts = convert(tmp_path / "m.gguf", out, Recipe(WeightFormat.F16), range_bytes=1)
    assert facts.weights == "f16"
    assert facts.accuracy.startswith("KL 0.0000, same first token for 100.0 %")
    types = {
        node.get_output_element_type(0).get_type_name()
        for node in read_model(out / "openvino_model.xml").get_ops()
        if node.get_type_name() == "Constant"
    }
    assert not types & {"i4", "u4", "u8"}
    assert len(find_units(read_model(out / "openvino_model.xml"))) == 8
