from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.errors import MeshInferError, ModelNotFound, ShardCorrupt, StageFailed, UsageError
from meshinfer.weights.selection import Kind, SourceFile, choose, refuse_hostile

IR = ["openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "config.json"]
SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
INDEX = "model.safetensors.index.json"


def _files(*names: str) -> list[SourceFile]:
    return [SourceFile(name, 10 + number) for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "kind", "chosen"),
    [
        ([*IR, "README.md", "x.py", "tokenizer.json"], Kind.IR, IR),
        ([*IR, "model.safetensors"], Kind.IR, IR),
        (
            ["model.safetensors", "config.json", "pytorch_model.bin", "original/params.json",
             "consolidated.safetensors", "model.fp16.safetensors", "modeling.py", "a.gguf",
             "onnx/model.onnx", "tokenizer.json", "chat_template.jinja"],
            Kind.SAFETENSORS,
            ["config.json", "chat_template.jinja", "tokenizer.json", "model.safetensors"],
        ),
        ([INDEX, *SHARDS, "config.json"], Kind.SAFETENSORS, ["config.json", INDEX, *SHARDS]),
        ([INDEX, *SHARDS, "model.safetensors"], Kind.SAFETENSORS, [INDEX, *SHARDS]),
        ([*SHARDS, "model.safetensors"], Kind.SAFETENSORS, ["model.safetensors"]),
        (["a.gguf", "mmproj-a.gguf", "README.md"], Kind.GGUF, ["a.gguf"]),
        (["m.Q8_0.gguf", "m-q4_k_m.gguf", "m.F16.gguf"], Kind.GGUF, ["m-q4_k_m.gguf"]),
        (["q8/m.Q8_0.gguf", "q4/m-Q4-K-M.gguf"], Kind.GGUF, ["q4/m-Q4-K-M.gguf"]),
    ],
)  # fmt: skip
def test_only_what_is_needed_is_chosen(names: list[str], kind: Kind, chosen: list[str]) -> None:
    found = choose(_files(*names))
    assert found.kind is kind
    assert {file.name for file in found.files} == set(chosen)
    assert found.size == sum(file.size for file in found.files)


def test_another_form_of_weights_is_made_from_the_checkpoint_not_from_its_ir() -> None:
    files = _files(*IR, "model.safetensors")
    assert choose(files, export=True).kind is Kind.SAFETENSORS
    assert choose(_files(*IR), export=True).kind is Kind.IR


def test_a_named_file_is_taken_alone() -> None:
    files = _files("a/m.Q8_0.gguf", "a/m.Q4_0.gguf", "model.safetensors")
    for name in ("a/m.Q4_0.gguf", "m.Q4_0.gguf"):
        assert choose(files, name).files == (files[1],)
    with pytest.raises(ModelNotFound, match=r"no file 'x\.gguf'.*a/m\.Q8_0\.gguf \(10 B\)"):
        choose(files, "x.gguf")


def test_a_gguf_in_parts_is_one_model() -> None:
    parts = [f"q8/m.Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]
    files = _files(*parts, "m.Q4_0.gguf")
    for name in (parts[0], parts[1], "q8/m.Q8_0.gguf", "m.Q8_0.gguf"):
        assert choose(files, name).files == (files[0], files[1])
    assert choose(files[:2]).files == (files[0], files[1])
    with pytest.raises(UsageError, match=r"q8/m\.Q8_0\.gguf \(21 B\)"):
        choose(files)


def test_several_quantisations_are_listed_with_their_sizes() -> None:
    with pytest.raises(UsageError, match=r"--file: m\.Q4_0\.gguf \(10 B\), m\.Q8_0\.gguf \(11 B\)"):
        choose(_files("m.Q4_0.gguf", "m.Q8_0.gguf"))


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        (["pytorch_model.bin", "config.json"], ModelNotFound, "pickle"),
        (["README.md"], ModelNotFound, "no OpenVINO IR, no safetensors and no GGUF"),
        ([], ModelNotFound, "There is no model"),
        (["consolidated.safetensors"], ModelNotFound, "unknown layout"),
        (["openvino_language_model.xml"], StageFailed, "pictures and text"),
        (["openvino_encoder_model.xml"], StageFailed, "no decoder"),
        (["adapter_model.safetensors"], StageFailed, "LoRA"),
        (["m-Q8_0-00001-of-00002.gguf"], ShardCorrupt, "only 1 of 2 parts"),
        (["mmproj-m.gguf"], ModelNotFound, "There is no model"),
    ],
)
def test_what_cannot_be_used_is_told(
    names: list[str], error: type[MeshInferError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        choose(_files(*names))
    assert caught.value.remedy


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../b", "C:\\x", "C:/x", "a\\b", "a\0b", "a//b", "./a", "a/", ""]
)
def test_a_name_that_leaves_the_folder_refuses_all(name: str) -> None:
    """S05."""
    with pytest.raises(ShardCorrupt, match="nothing is fetched"):
        choose(_files(*IR, name))


@given(st.text(max_size=40))
def test_what_passes_stays_in_its_folder(name: str) -> None:
    with contextlib.suppress(ShardCorrupt):
        refuse_hostile(name)
        assert not name.startswith("/")
        assert ".." not in name.split("/")
        assert "\\" not in name
