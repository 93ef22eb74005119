"""openvino_genai's GGUF reader: a small GGUF becomes an IR, a tokenizer and a detokenizer.

The reader is reached through a pipeline or a tokenizer only, and writes beside what it reads.
Called by the conversion. Blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshinfer.errors import StageFailed
from meshinfer.weights.cut import openvino_errors
from meshinfer.weights.disk import disk_errors

IR_XML = "openvino_model.xml"
TOKENIZER_FILES = (
    "openvino_tokenizer.xml",
    "openvino_tokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_detokenizer.bin",
)
_NO_DEVICE = "NONE"
"""The pipeline saves the IR, then compiles it for its device. Compiling would take as long as all
the rest and twice the memory, so the device is one that does not exist."""


def read_ir(gguf: Path) -> Path:
    """The XML of the IR, written beside `gguf`. Raises StageFailed, DiskFull."""
    import openvino_genai

    xml = gguf.with_name(IR_XML)
    xml.unlink(missing_ok=True)
    with _reader_errors(gguf):
        try:
            openvino_genai.LLMPipeline(str(gguf), _NO_DEVICE, enable_save_ov_model=True)
        except RuntimeError:
            if not xml.is_file():
                raise
    _require(xml)
    return xml


def read_tokenizer(gguf: Path) -> None:
    """TOKENIZER_FILES beside `gguf`. Raises StageFailed, DiskFull."""
    import openvino_genai

    with _reader_errors(gguf):
        openvino_genai.Tokenizer(str(gguf), enable_save_ov_model=True)
    for name in TOKENIZER_FILES:
        _require(gguf.with_name(name))


@contextmanager
def _reader_errors(gguf: Path) -> Iterator[None]:
    """The reader's C++ looks things up without asking first: those errors arrive as IndexError and
    ValueError."""
    doing = f"Reading {gguf.name} with OpenVINO's GGUF reader"
    with openvino_errors(doing), disk_errors(gguf.parent):
        try:
            yield
        except (IndexError, ValueError) as error:
            raise StageFailed(f"{doing} failed: something it needs is not there.") from error


def _require(file: Path) -> None:
    if not file.is_file():
        raise StageFailed(
            f"openvino_genai did not write {file.name}.",
            "Install the version that meshinfer pins.",
        )
