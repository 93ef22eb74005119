from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import ModelShape, SharedBytes, Unit, UnitKind
from meshinfer.errors import ShardCorrupt
from meshinfer.weights.description import (
    Description,
    ModelFile,
    digest_over,
    from_json,
    to_json,
)

FILES = (
    ModelFile("openvino_model.bin", 10, Digest("b" * 64)),
    ModelFile("openvino_model.xml", 20, Digest("c" * 64)),
)
UNITS = (
    Unit(UnitKind.EMBEDDING, 0, 5, 0, 8),
    Unit(UnitKind.HEAD, 0, 5, 0, 8, (SharedBytes(0, 5, 0),)),
)
SHAPE = ModelShape(
    model=ModelId("m"),
    digest=digest_over(FILES),
    units=UNITS,
    layers=1,
    hidden_size=2,
    vocabulary_size=3,
    context_length=4,
)
DESCRIPTION = Description(
    shape=SHAPE,
    stop_tokens=(2, 7),
    bos=None,
    architecture="llama",
    source="a test",
    openvino="2026.4.1",
    chat_template="{{ messages }} \N{SNOWMAN}",
    created=1_700_000_000,
    files=FILES,
    weights="int4 group 128",
    accuracy="KL 0.004",
    recipe="int4 group 128",
    revision="0" * 40,
)


def test_there_and_back() -> None:
    assert from_json(to_json(DESCRIPTION)) == DESCRIPTION


def test_the_digest_covers_names_sizes_and_bytes_but_not_their_order() -> None:
    one, two = FILES
    assert digest_over((two, one)) == digest_over(FILES)
    for changed in (
        replace(one, name="x"),
        replace(one, size=11),
        replace(one, digest=Digest("d" * 64)),
    ):
        assert digest_over((changed, two)) != digest_over(FILES)


def test_names_and_sizes_cannot_be_shifted_into_each_other() -> None:
    digest = Digest("b" * 64)
    assert digest_over((ModelFile("a1", 1, digest),)) != digest_over((ModelFile("a", 11, digest),))


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "7", '{"format": 1}', "\0"])
def test_text_that_is_no_description_is_refused(text: str) -> None:
    with pytest.raises(ShardCorrupt, match="cannot be read"):
        from_json(text)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "CON", "a\\b", ""])
def test_names_that_leave_the_folder_are_refused(name: str) -> None:
    """S05; the digest over the files is right, so only the name is wrong."""
    files = (replace(FILES[0], name=name),)
    bad = replace(
        DESCRIPTION, files=files, shape=replace(DESCRIPTION.shape, digest=digest_over(files))
    )
    with pytest.raises(ShardCorrupt, match="was altered"):
        from_json(to_json(bad))


@pytest.mark.parametrize("key", list(json.loads(to_json(DESCRIPTION))))
def test_nothing_may_be_missing(key: str) -> None:
    content = json.loads(to_json(DESCRIPTION))
    del content[key]
    with pytest.raises(ShardCorrupt):
        from_json(json.dumps(content))


def test_a_folder_of_the_first_format_is_read_as_what_it_could_hold() -> None:
    content = json.loads(to_json(DESCRIPTION)) | {"format": 1}
    for key in ("weights", "accuracy", "recipe", "revision"):
        del content[key]
    for unit in content["shape"]["units"]:
        del unit["shared"]
    first = replace(DESCRIPTION, weights="original", accuracy="", recipe="", revision="")
    plain = tuple(replace(unit, shared=()) for unit in UNITS)
    first = replace(first, shape=replace(SHAPE, units=plain))
    assert from_json(json.dumps(content)) == first


def test_nothing_may_be_added() -> None:
    content = {**json.loads(to_json(DESCRIPTION)), "more": 1}
    with pytest.raises(ShardCorrupt):
        from_json(json.dumps(content))
