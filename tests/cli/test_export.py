from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from meshinfer.cli.export import read_layers
from meshinfer.cli.main import run
from meshinfer.errors import UsageError
from tests.export.checkpoint_folder import write_checkpoint


def test_layers_are_read() -> None:
    assert read_layers("0:14") == (0, 14)
    assert read_layers(None) is None


@pytest.mark.parametrize("text", ["", "3", "a:b", "4:4", "5:2", "-1:3", "0:1:2", "0: 3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no range of layers"):
        read_layers(text)


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is not None, reason="the export extra is installed"
)
def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint")
    assert run(["export", str(folder), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.endswith("pip install 'meshinfer-fleet[export]'\n")
    assert not (tmp_path / "out").exists()


def test_a_group_size_that_is_not_offered_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(tmp_path), "--out", str(tmp_path), "--group-size", "100"]
    assert run(words) == 2
    assert "group size of 100" in capsys.readouterr().err
