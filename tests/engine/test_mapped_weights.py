"""Pages of the weights file do not stay with the process, and the stage computes the same."""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from meshinfer.core.step import Row, Step
from meshinfer.engine.mapped_weights import let_go
from meshinfer.engine.paged import PagedStage, StageOptions
from tests.weights.tiny import tiny_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def resident(path: Path) -> int:
    """Bytes of the file's mappings that are in this process's memory (proc_pid_smaps(5))."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_pages_that_were_read_go_and_come_back(tmp_path: Path) -> None:
    file = tmp_path / "Zo\u00eb #1.bin"
    content = np.random.default_rng(0).bytes(8 << 20)
    file.write_bytes(content)
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        with let_go(file):
            assert mapped[:] == content
        assert resident(file) < 1 << 20
        assert mapped[:] == content


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one.bin", tmp_path / "other.bin"
    for file in (one, other):
        file.write_bytes(bytes(4 << 20))
    with (
        other.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        with let_go(one):
            assert mapped[:] == bytes(4 << 20)
        assert resident(other) == 4 << 20


@pytest.mark.openvino
def test_a_stage_that_let_go_answers_the_same(tmp_path: Path) -> None:
    xml = tmp_path / "openvino_model.xml"
    ov.save_model(tiny_model(layers=2, vocabulary=4096), xml, compress_to_fp16=False)
    step = Step(0, (Row(0, 0, 3, 3),), (1, 2, 3), ())
    options = StageOptions(cache_tokens=64)
    kept = PagedStage.load(xml, options).forward(step, None).copy()
    with let_go(xml.with_suffix(".bin")):
        stage = PagedStage.load(xml, options)
        stage.forward(step, None)
    again = Step(1, (Row(1, 0, 3, 3),), (1, 2, 3), (0,))
    assert np.array_equal(stage.forward(again, None), kept)
