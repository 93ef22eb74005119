from __future__ import annotations

from pathlib import Path

import pytest

from meshinfer.errors import StageFailed
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.cut import read_model
from meshinfer.weights.cut_points import find_units
from meshinfer.weights.gguf_file import open_gguf
from meshinfer.weights.gguf_ranges import write_range, write_tokenizer
from meshinfer.weights.gguf_reader import TOKENIZER_FILES, read_ir, read_tokenizer
from tests.weights.gguf_models import make_gguf

pytestmark = [pytest.mark.openvino, pytest.mark.slow]


def test_a_range_becomes_an_ir_without_being_compiled(tmp_path: Path) -> None:
    make_gguf(tmp_path / "m.gguf")
    write_range(open_gguf(tmp_path / "m.gguf"), LayerSpan(1, 3), tmp_path / "r.gguf")
    xml = read_ir(tmp_path / "r.gguf")
    assert xml == tmp_path / "openvino_model.xml"
    assert len(find_units(read_model(xml))) == 1 + 2 * 2 + 1


def test_an_older_ir_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_text("<old/>")
    (tmp_path / "r.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(StageFailed, match=r"Reading r\.gguf .* failed: something it needs"):
        read_ir(tmp_path / "r.gguf")


def test_the_tokenizer_needs_no_tensors(tmp_path: Path) -> None:
    import openvino_genai

    make_gguf(tmp_path / "m.gguf")
    write_tokenizer(open_gguf(tmp_path / "m.gguf"), tmp_path / "t.gguf")
    read_tokenizer(tmp_path / "t.gguf")
    assert all((tmp_path / name).is_file() for name in TOKENIZER_FILES)
    tokenizer = openvino_genai.Tokenizer(str(tmp_path))
    assert tokenizer.encode("abc").input_ids.data.tolist() == [[79]]
    assert tokenizer.decode([79, 2, 3]) == 'abc!"'
    assert "<|im_end|>" in tokenizer.chat_template


def test_a_tokenizer_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    make_gguf(tmp_path / "m.gguf", tokenizer__ggml__merges=None)
    write_tokenizer(open_gguf(tmp_path / "m.gguf"), tmp_path / "t.gguf")
    with pytest.raises(StageFailed, match=r"Reading t\.gguf .* failed"):
        read_tokenizer(tmp_path / "t.gguf")
