from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshinfer.weights.gguf_file import open_gguf
from meshinfer.weights.gguf_header import read_header
from meshinfer.weights.gguf_writer import TensorToWrite, write_gguf


def test_what_is_written_is_read(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "llama",
        "a.number": 7,
        "a.share": 0.5,
        "a.switch": True,
        "some.words": ["one", "zwei", ""],
        "some.numbers": [1, -2, 3],
    }
    values = np.arange(96, dtype=np.float32).reshape(3, 32)
    pieces = TensorToWrite("m", (32, 3), 0, lambda: [values[:1].tobytes(), values[1:].tobytes()])
    vector = TensorToWrite("v", (5,), 1, lambda: [np.ones(5, np.float16).tobytes()])
    write_gguf(tmp_path / "a.gguf", metadata, [vector, pieces])
    header = read_header(tmp_path / "a.gguf")
    assert dict(header.metadata) == {
        **metadata,
        "some.words": ("one", "zwei", ""),
        "some.numbers": (1, -2, 3),
    }
    file = open_gguf(tmp_path / "a.gguf")
    assert np.array_equal(file.places["m"].values(), values)
    assert file.places["v"].values().tolist() == [[1.0] * 5]


def test_entries_of_another_file_stay_as_they_are(tmp_path: Path) -> None:
    words = ["Ġa", "\n", "x" * 300]
    write_gguf(tmp_path / "a.gguf", {"general.name": "a", "tokens": words, "n": 3}, [])
    first = open_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf", {"m": 1}, [], [first.entry("tokens"), first.entry("n")])
    copied = read_header(tmp_path / "b.gguf").metadata
    assert copied == {"m": 1, "tokens": tuple(words), "n": 3}


def test_data_of_another_size_than_announced_is_a_bug(tmp_path: Path) -> None:
    short = TensorToWrite("v", (5,), 0, lambda: [bytes(16)])
    with pytest.raises(AssertionError, match="v"):
        write_gguf(tmp_path / "a.gguf", {}, [short])
