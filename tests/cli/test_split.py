"""`meshinfer split` as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from meshinfer.weights.cut import read_model
from tests.weights.model_folder import make_model_folder
from tests.weights.tiny import tiny_model

pytestmark = [pytest.mark.openvino, pytest.mark.slow]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with the model `tiny`."""
    root = tmp_path_factory.mktemp("state")
    xml = tmp_path_factory.mktemp("tiny") / "openvino_model.xml"
    ov.save_model(tiny_model(hidden=200, vocabulary=251), xml, compress_to_fp16=False)
    make_model_folder(root / "models", xml)
    return root


def split(state: Path, out: Path, stages: int) -> Any:
    command = [sys.executable, "-m", "meshinfer", "split", "tiny", "--json"]
    where = ["--state-dir", str(state), "--stages", str(stages), "--out", str(out)]
    done = subprocess.run([*command, *where], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["stages"]


def test_every_stage_is_a_folder_that_openvino_reads(tmp_path: Path, state: Path) -> None:
    stages = split(state, tmp_path, 2)
    assert [one["stage"] for one in stages] == [0, 1]
    for one in stages:
        folder = Path(one["folder"])
        assert folder.parent == tmp_path / "stages"
        assert (folder / "openvino_model.bin").stat().st_size < one["bytes"]
        read_model(folder / "openvino_model.xml")


def test_another_number_of_stages_keeps_what_is_there(tmp_path: Path, state: Path) -> None:
    first = split(state, tmp_path, 2)
    before = {one["folder"]: Path(one["folder"]).stat().st_ino for one in first}
    split(state, tmp_path, 3)
    assert split(state, tmp_path, 2) == first
    assert before == {one["folder"]: Path(one["folder"]).stat().st_ino for one in first}
    assert len(list((tmp_path / "stages").iterdir())) == 5
