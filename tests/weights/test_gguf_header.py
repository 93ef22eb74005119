from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.errors import ShardCorrupt
from meshinfer.weights.gguf_header import TensorInfo, read_header
from tests.weights.gguf_writer import LLAMA, Q4_0, gguf_bytes

TENSORS = [("token_embd.weight", [64, 256], Q4_0), ("output_norm.weight", [64], 0)]


def _file(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors_are_read(tmp_path: Path, version: int) -> None:
    header = read_header(_file(tmp_path, gguf_bytes(LLAMA, TENSORS, version)))
    assert header.architecture == "llama"
    assert header.of_architecture("context_length") == 2048
    assert header.metadata["tokenizer.ggml.tokens"][4] == "<|im_end|>"
    assert header.metadata["tokenizer.ggml.token_type"] == (2, 3, 3, 1, 3)
    assert header.tensors[0] == TensorInfo("token_embd.weight", (64, 256), Q4_0)


def test_a_file_that_ends_anywhere_too_early_is_refused(tmp_path: Path) -> None:
    data = gguf_bytes({"general.architecture": "llama", "a": [1, 2], "b": ["x"]}, TENSORS[:1])
    for end in range(len(data)):
        with pytest.raises(ShardCorrupt):
            read_header(_file(tmp_path, data[:end]))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GGML" + bytes(30), "not GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 0), "tensors are announced"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 62), "metadata entries are announced"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60) + bytes(20), "characters are announced"),
        (gguf_bytes({"a": 1}).replace(b"a\x04", b"a\x63"), "unknown type 99"),
    ],
)
def test_sizes_are_compared_with_what_is_left_before_anything_is_built(
    tmp_path: Path, data: bytes, why: str
) -> None:
    with pytest.raises(ShardCorrupt, match=why):
        read_header(_file(tmp_path, data))


def test_an_array_that_announces_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    array = struct.pack("<IIQ", 9, 10, 1 << 40)
    data = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + array + bytes(64)
    with pytest.raises(ShardCorrupt, match="values are announced"):
        read_header(_file(tmp_path, data))


def test_arrays_of_arrays_are_refused(tmp_path: Path) -> None:
    array = struct.pack("<IIQ", 9, 9, 1)
    data = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + array + bytes(64)
    with pytest.raises(ShardCorrupt, match="unknown type 9"):
        read_header(_file(tmp_path, data))


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    data = gguf_bytes({"aa": 1, "bb": 2}).replace(b"bb", b"aa")
    with pytest.raises(ShardCorrupt, match="twice"):
        read_header(_file(tmp_path, data))


def test_vocabularies_may_hold_halves_of_characters(tmp_path: Path) -> None:
    data = gguf_bytes({"tokenizer.ggml.tokens": ["ab", "cd"]}).replace(b"cd", b"\xc3\x28")
    assert read_header(_file(tmp_path, data)).metadata["tokenizer.ggml.tokens"][0] == "ab"


@given(noise=st.binary(max_size=200), where=st.integers(0, 400))
def test_any_damage_is_either_harmless_or_refused(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, where: int
) -> None:
    data = bytearray(gguf_bytes(LLAMA, TENSORS))
    data[where : where + len(noise)] = noise
    path = _file(tmp_path_factory.mktemp("damage"), bytes(data))
    with contextlib.suppress(ShardCorrupt):  # anything else fails the test
        read_header(path)
