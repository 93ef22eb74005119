from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshinfer.errors import ShardCorrupt
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.export.orders import News, Order
from meshinfer.weights.export.process import LOG, MODULE, SCRATCH, ExportProcess
from meshinfer.weights.recipe import Recipe
from tests.export.checkpoint_folder import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def order_for(checkpoint: Path, work: Path) -> Order:
    spans = (LayerSpan(0, 3),)
    return Order(checkpoint, work, Recipe(), "key", spans, spans, False, 1 << 40)


def test_what_the_child_raises_is_raised_here(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", model_type=None)
    (tmp_path / SCRATCH).mkdir()
    with (
        ExportProcess(order_for(folder, tmp_path)) as process,
        pytest.raises(ShardCorrupt, match="model's type"),
    ):
        list(process.news())
    assert not (tmp_path / SCRATCH).exists()


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    """It waits for an order, or works, until its standard input is closed."""
    child = subprocess.Popen(
        [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(order_for(tmp_path / "missing", tmp_path).to_line() + "\n")
    child.stdin.close()
    assert child.wait(timeout=120) in (1, 2)
    for line in child.stdout.read().splitlines():
        assert News.from_line(line).error is not None
    child.stdout.close()


def test_nothing_but_news_is_on_standard_output(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        input=order_for(folder, tmp_path).to_line() + "\n",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (1, 2)
    for line in done.stdout.splitlines():
        assert News.from_line(line).error is not None
    assert not (tmp_path / LOG).exists()  # the parent keeps it, and there was none
