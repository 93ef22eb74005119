"""`meshinfer pull` as a person types it, for sources on this machine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from meshinfer.cli.main import run
from meshinfer.cli.pull import recipe_of
from meshinfer.errors import UsageError
from meshinfer.node.state_folder import StateFolder
from meshinfer.weights.folder import list_folders
from meshinfer.weights.recipe import Recipe, WeightFormat
from tests.weights.gguf_models import make_gguf
from tests.weights.hub_server import HubServer, Repository, serving
from tests.weights.ir_folder import make_ir_folder

ODD = "Zoë Łukasz 山田/My Models (v2) #1 & co"
"""W03."""


@pytest.mark.parametrize(
    ("form", "group", "awq", "recipe"),
    [
        (None, None, False, None),
        ("int8", None, False, Recipe(WeightFormat.INT8)),
        ("original", None, False, Recipe(WeightFormat.ORIGINAL)),
        (None, 64, False, Recipe(WeightFormat.INT4_ASYM, 64)),
        ("int4-asym", 32, True, Recipe(WeightFormat.INT4_ASYM, 32, True)),
        (None, None, True, Recipe(awq=True)),
    ],
)
def test_options_are_a_recipe_or_none(
    form: str | None, group: int | None, awq: bool, recipe: Recipe | None
) -> None:
    assert recipe_of(form, group, awq) == recipe


@pytest.mark.parametrize(("form", "group", "awq"), [(None, 48, False), ("f16", None, True)])
def test_options_that_do_not_fit_together(form: str | None, group: int | None, awq: bool) -> None:
    with pytest.raises(UsageError):
        recipe_of(form, group, awq)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["../nowhere"], 1, "no file or folder"),
        (["gpt-5"], 1, "no model 'gpt-5'"),
        (["hf:../x"], 2, "no name of a repository"),
        (["smollm2-135m", "--revision", "v1"], 2, "--revision"),
        (["smollm2-135m", "--name", "../x"], 1, "no name of a model"),
        (["smollm2-135m", "--group-size", "5"], 2, "group size"),
    ],
)
def test_what_cannot_be_meant_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert run(["pull", *words, "--state-dir", str(tmp_path / "s")]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.openvino
@pytest.mark.slow
def test_pull_and_models_below_an_odd_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """W03: nothing appears anywhere else."""
    base = tmp_path / ODD
    base.mkdir(parents=True)
    make_gguf(base / "Tiny Llama (山田).gguf")
    state = str(base / "state")
    source = str(base / "Tiny Llama (山田).gguf")
    command = ["pull", source, "--format", "original", "--state-dir", state, "--json"]
    assert run(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == "tiny-llama"
    assert told["folder"] == str(Path(state) / "models" / "tiny-llama")
    assert told["source"] == f"local {source}"
    assert run(["models", "--state-dir", state, "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert rows["tiny-llama"]["here"]
    assert rows["tiny-llama"]["chosen"]
    assert rows["tiny-llama"]["weights"] == told["weights"]
    assert not rows["smollm2-135m"]["here"]
    assert run(["models", "--state-dir", state]) == 0
    assert "*  tiny-llama" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {ODD.split("/")[0]}
    assert {path.name for path in base.iterdir()} == {Path(source).name, "state"}


@pytest.mark.openvino
@pytest.mark.slow
def test_a_form_for_an_ir_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_ir_folder(tmp_path / "Tiny-ov")
    state = ["--state-dir", str(tmp_path / "s")]
    assert run(["pull", str(folder), "--format", "int8", *state]) == 2
    assert "kept as it is" in capsys.readouterr().err
    assert run(["pull", str(folder), "--name", "mine", *state]) == 0
    assert "mine: 3 layers, " in capsys.readouterr().out


def _environment(server: HubServer, tmp_path: Path) -> dict[str, str]:
    own = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": ""}
    return {**os.environ, **own}


def _wait_for_bytes(path: Path, count: int, never: threading.Event) -> None:
    end = time.monotonic() + 60
    while not path.is_file() or path.stat().st_size < count:
        assert time.monotonic() < end
        never.wait(0.02)


@pytest.mark.openvino
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process")
def test_ctrl_c_says_that_the_next_pull_goes_on(tmp_path: Path) -> None:
    make_gguf(tmp_path / "t.gguf")
    data = (tmp_path / "t.gguf").read_bytes()
    repository = Repository({"t.gguf": data}, frozenset({"t.gguf"}))
    cut = random.Random(3).randrange(1000, len(data))
    command = [sys.executable, "-m", "meshinfer", "pull", "org/tiny", "--format", "original"]
    command += ["--state-dir", str(tmp_path / "s")]
    with serving({"org/tiny": repository}) as server:
        server.stalls.append(cut)
        environment = _environment(server, tmp_path)
        with subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True
        ) as pulling:
            assert server.standing.wait(60)
            part = tmp_path / "s" / "models" / ".tiny.fetch" / "model.gguf.part"
            _wait_for_bytes(part, cut, server.over)
            pulling.send_signal(signal.SIGINT)
            _, said = pulling.communicate(timeout=60)
        assert pulling.returncode == 130
        assert "The same command goes on where it was." in said
        assert "Traceback" not in said
        again = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert again.returncode == 0, again.stderr
        assert server.sent == len(data)
        assert f"bytes={cut}-" in [one.range for one in server.heard]
    models = list_folders(StateFolder(tmp_path / "s").models)
    assert [one.model for one in models] == ["tiny"]


@pytest.mark.openvino
@pytest.mark.slow
def test_two_pulls_at_once_both_succeed(tmp_path: Path) -> None:
    make_gguf(tmp_path / "t.gguf")
    command = [sys.executable, "-m", "meshinfer", "pull", str(tmp_path / "t.gguf")]
    command += ["--format", "original", "--json", "--state-dir", str(tmp_path / "s")]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    told = [json.loads(out) for out, _ in said]
    assert told[0] == told[1]
    assert sum("convert" in error for _, error in said) == 1
