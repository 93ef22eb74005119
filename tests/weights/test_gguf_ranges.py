from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshinfer.errors import StageFailed
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.gguf_file import open_gguf
from meshinfer.weights.gguf_header import read_header
from meshinfer.weights.gguf_ranges import (
    STAND_IN_ROWS,
    in_half,
    mark_of,
    write_range,
    write_range_as_it_is,
    write_tokenizer,
)
from tests.weights.gguf_models import F16, F32, Q4_0, Q5_0, Q8_0, VOCABULARY, make_gguf

KINDS = {"ffn_down": Q5_0, "attn_v": Q8_0, "ffn_up": F16, "attn_output": F32}


def test_a_range_holds_its_layers_from_0_on_in_f16(tmp_path: Path) -> None:
    real = make_gguf(tmp_path / "m.gguf", layers=5, kinds=KINDS)
    written = write_range(open_gguf(tmp_path / "m.gguf"), LayerSpan(2, 4), tmp_path / "r.gguf")
    part = open_gguf(written.path)
    assert part.header.of_architecture("block_count") == 2
    assert {name for name in part.places if name.startswith("blk.")} == {
        name.replace("blk.2", "blk.0").replace("blk.3", "blk.1")
        for name in real
        if name.startswith(("blk.2", "blk.3"))
    }
    for name in ("attn_q", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        place = part.places[f"blk.1.{name}.weight"]
        assert place.info.kind == F16
        expected = real[f"blk.3.{name}.weight"].astype(np.float16)
        assert np.array_equal(place.values(), expected.astype(np.float32))
        assert written.names[mark_of(expected)] == f"blk.3.{name}.weight"
    norm = part.places["blk.0.attn_norm.weight"]
    assert norm.info.kind == F32
    assert np.array_equal(norm.values()[0], real["blk.2.attn_norm.weight"])


@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_head_have_stand_ins_that_tell_them_apart(tmp_path: Path, tied: bool) -> None:
    make_gguf(tmp_path / "m.gguf", tied=tied)
    written = write_range(open_gguf(tmp_path / "m.gguf"), LayerSpan(0, 3), tmp_path / "r.gguf")
    part = open_gguf(written.path)
    ends = ["token_embd.weight"] if tied else ["token_embd.weight", "output.weight"]
    assert [name for name in ("token_embd.weight", "output.weight") if name in part.places] == ends
    for name in ends:
        stand_in = part.places[name].values().astype(np.float16)
        assert len(stand_in) == STAND_IN_ROWS
        assert written.names[mark_of(stand_in)] == name
    assert len(part.header.metadata["tokenizer.ggml.tokens"]) < 10


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("span", "embedding", "head"),
    [((0, 1), True, False), ((1, 2), False, False), ((2, 3), False, True), ((0, 3), True, True)],
)
def test_as_it_is_the_real_ends_are_where_the_range_has_them(
    tmp_path: Path, tied: bool, span: tuple[int, int], embedding: bool, head: bool
) -> None:
    real = make_gguf(tmp_path / "m.gguf", tied=tied, kinds=KINDS)
    source = open_gguf(tmp_path / "m.gguf")
    write_range_as_it_is(source, LayerSpan(*span), tmp_path / "r.gguf", span[1] == 3)
    part = open_gguf(tmp_path / "r.gguf")
    is_there = part.places["token_embd.weight"].rows == VOCABULARY
    assert is_there is (embedding or (head and tied))
    if not tied:
        assert (part.places["output.weight"].rows == VOCABULARY) is head
    place = part.places["blk.0.attn_q.weight"]
    assert place.read().tobytes() == source.places[f"blk.{span[0]}.attn_q.weight"].read().tobytes()
    kinds = {name: part.places[f"blk.0.{name}.weight"].info.kind for name in ("attn_q", *KINDS)}
    assert kinds == {
        "attn_q": Q4_0,
        "ffn_down": F16,  # Q5_0 is not read
        "attn_v": Q8_0,
        "ffn_up": F16,
        "attn_output": F16,  # of matrices, F32 is not read
    }
    expected = real[f"blk.{span[0]}.ffn_down.weight"].astype(np.float16)
    assert np.array_equal(part.places["blk.0.ffn_down.weight"].values(), expected)


def test_the_tokenizer_comes_with_all_its_entries_and_no_tensors(tmp_path: Path) -> None:
    make_gguf(tmp_path / "m.gguf")
    write_tokenizer(open_gguf(tmp_path / "m.gguf"), tmp_path / "t.gguf")
    whole, part = (read_header(tmp_path / name) for name in ("m.gguf", "t.gguf"))
    assert part.tensors == ()
    keys = {key for key in whole.metadata if key.startswith("tokenizer.")}
    assert set(part.metadata) == {*keys, "general.architecture"}
    assert all(part.metadata[key] == whole.metadata[key] for key in keys)


@pytest.mark.parametrize("value", [1e6, float("nan"), float("-inf")])
def test_what_f16_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(StageFailed, match=r"blk\.0\.x has values that are no numbers, or too"):
        in_half(np.array([1.0, value], np.float32), "blk.0.x")
