"""The weights process: jobs go in over its pipe, news and an end come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshinfer.core.ids import ModelId
from meshinfer.node.child import ChildProcess
from meshinfer.node.stores import StoreChoice
from meshinfer.weights.folder import find_folder
from meshinfer.wire.child import WeightsDone, WeightsFailed, WeightsJob, WeightsNews
from tests.weights.gguf_models import make_gguf

pytestmark = [pytest.mark.slow, pytest.mark.openvino]


async def _work(job: WeightsJob) -> list[Any]:
    said: list[Any] = []
    async with ChildProcess("meshinfer.node.weights_host") as child:
        await child.send(job)
        while not said or isinstance(said[-1], WeightsNews):
            said.append(await child.receive())
    return said


def _pull(tmp_path: Path, model: str, source: str, recipe: str = "") -> WeightsJob:
    models, store = str(tmp_path / "models"), StoreChoice(tmp_path / "store").tell()
    return WeightsJob("pull", ModelId(model), models, store, (), source, recipe)


async def test_a_pull_from_a_source_under_a_name_in_a_form(tmp_path: Path) -> None:
    make_gguf(tmp_path / "t.gguf")
    said = await _work(_pull(tmp_path, "mine", str(tmp_path / "t.gguf"), "original"))
    assert {"convert", "describe"} <= {news.phase for news in said[:-1]}
    made = find_folder(tmp_path / "models", ModelId("mine"))
    assert said[-1] == WeightsDone(str(made.path), ())
    assert made.description.recipe == "original"


@pytest.mark.parametrize(
    ("model", "source", "recipe", "code"),
    [
        ("gpt-5", "", "", "model_not_found"),
        ("mine", "./nowhere", "", "model_not_found"),
        ("mine", "hf:../x", "", "usage"),
        ("../x", ".", "", "model_not_found"),
        ("mine", ".", "int5", "usage"),
    ],
)
async def test_a_pull_that_cannot_be(
    tmp_path: Path, model: str, source: str, recipe: str, code: str
) -> None:
    (failed,) = await _work(_pull(tmp_path, model, source, recipe))
    assert isinstance(failed, WeightsFailed)
    assert failed.code == code


async def test_a_model_without_a_source_is_never_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    (failed,) = await _work(_pull(tmp_path, "mine", ""))
    assert failed.code == "model_not_found"
    assert "Choose one of" in failed.remedy
