from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.ids import ModelId
from meshinfer.errors import MeshInferError, ModelNotFound, UsageError
from meshinfer.weights.plain_name import objection
from meshinfer.weights.source import (
    CatalogueSource,
    HubSource,
    LocalSource,
    Source,
    plain_id,
    read_source,
)

KNOWN = ("smollm2-135m",)
HERE = Path.cwd()


def never(path: Path) -> bool:
    return False


def always(path: Path) -> bool:
    return True


@pytest.mark.parametrize(
    ("text", "source", "model"),
    [
        ("smollm2-135m", CatalogueSource(ModelId("smollm2-135m")), "smollm2-135m"),
        ("OpenVINO/Qwen3-8B-int4-ov", HubSource("OpenVINO/Qwen3-8B-int4-ov"), "qwen3-8b-int4-ov"),
        ("hf:gpt2", HubSource("gpt2"), "gpt2"),
        ("hf:org/repo", HubSource("org/repo"), "repo"),
        ("org/repo@v1.0", HubSource("org/repo", "v1.0"), "repo"),
        (
            "bart/Llama-GGUF@main/sub/Llama.Q4_K_M.gguf",
            HubSource("bart/Llama-GGUF", "main", "sub/Llama.Q4_K_M.gguf"),
            "llama.q4_k_m",
        ),
        ("org/repo/m.gguf", HubSource("org/repo", "", "m.gguf"), "m"),
        ("https://huggingface.co/org/repo", HubSource("org/repo"), "repo"),
        ("https://huggingface.co/org/repo/", HubSource("org/repo"), "repo"),
        ("https://huggingface.co/org/repo/tree/v2", HubSource("org/repo", "v2"), "repo"),
        (
            "https://hf.co/org/repo/blob/main/a/m.gguf?download=true",
            HubSource("org/repo", "main", "a/m.gguf"),
            "m",
        ),
    ],
)
def test_names_of_the_catalogue_and_the_hub(text: str, source: Source, model: str) -> None:
    assert read_source(text, KNOWN, never) == source
    assert source.model_id == model


@pytest.mark.parametrize(
    ("text", "path", "model"),
    [
        ("./repo", HERE / "repo", "repo"),
        ("/data/My Models (v2) #1 & co/Llama 3.gguf",
         Path("/data/My Models (v2) #1 & co/Llama 3.gguf"), "llama-3"),
        ("folder", HERE / "folder", "folder"),
        ("Zoë Łukasz/Größe", HERE / "Zoë Łukasz/Größe", "groe"),
        ("gguf/model.gguf", HERE / "gguf/model.gguf", "model"),
        ("org/repo/sub", HERE / "org/repo/sub", "sub"),
        ("./smollm2-135m", HERE / "smollm2-135m", "smollm2-135m"),
    ],
)  # fmt: skip
def test_what_is_on_the_disk(text: str, path: Path, model: str) -> None:
    source = read_source(text, KNOWN, always)
    assert source == LocalSource(path)
    assert source.model_id == model


def test_a_folder_above_is_known_by_its_own_name(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    assert read_source(f"{inner}/..").model_id == "outer"


def test_the_catalogue_wins_over_a_folder() -> None:
    assert read_source("smollm2-135m", KNOWN, always) == CatalogueSource(ModelId("smollm2-135m"))


def test_a_folder_that_could_be_a_repository_is_asked_about() -> None:
    with pytest.raises(UsageError, match=r"\./org/repo for the folder, or hf:org/repo"):
        read_source("org/repo", KNOWN, always)
    assert read_source("hf:org/repo", KNOWN, always) == HubSource("org/repo")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", UsageError, "empty name"),
        ("   ", UsageError, "empty name"),
        ("a\0b", UsageError, "control characters"),
        ("a\nb", UsageError, "control characters"),
        ("x" * 5000, UsageError, "5000 characters"),
        ("../x", ModelNotFound, "no file or folder '../x'"),
        ("/etc/x", ModelNotFound, "no file or folder"),
        ("C:\\x", ModelNotFound, "no file or folder"),
        ("..\\x", ModelNotFound, "no file or folder"),
        ("CON", ModelNotFound, "no model 'CON'"),
        ("gpt-5", ModelNotFound, "no model 'gpt-5'"),
        ("a b", ModelNotFound, "no model 'a b'"),
        ("hf:../x", UsageError, "no name of a repository"),
        ("hf:a--b/c", UsageError, "no name of a repository"),
        ("hf:org/repo@../x", UsageError, "no revision|GGUF|repository"),
        ("hf:org/repo/../x.gguf", UsageError, "no file of a repository"),
        ("hf:org/repo//x.gguf", UsageError, "no file of a repository"),
        ("hf:org/repo/a\\x.gguf", UsageError, "no file of a repository"),
        ("hf:org/repo/model.safetensors", UsageError, "no GGUF file"),
        ("https://huggingface.co/org", UsageError, "page of an owner"),
    ],
)
def test_nonsense_is_told_from_typing_errors(
    text: str, error: type[MeshInferError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        read_source(text, KNOWN, never)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["CON", "con.gguf", "NUL", "LPT1.x"])
def test_devices_of_windows_are_no_checkpoints(name: str) -> None:
    with pytest.raises(UsageError, match="device of Windows"):
        read_source(f"./{name}", KNOWN, always)


def test_options_say_the_same_as_the_text_or_are_refused() -> None:
    assert read_source("org/repo", KNOWN, never, "refs/pr/1", "a.gguf") == HubSource(
        "org/repo", "refs/pr/1", "a.gguf"
    )
    assert read_source("org/repo@v1", KNOWN, never, "v1") == HubSource("org/repo", "v1")
    assert read_source("./x", KNOWN, always, "", "b.gguf") == LocalSource(HERE / "x", "b.gguf")
    for text, revision, file, words in (
        ("org/repo@v1", "v2", "", "Two different revisions"),
        ("org/repo/a.gguf", "", "b.gguf", "Two different files"),
        ("smollm2-135m", "v1", "", "--revision off"),
        ("smollm2-135m", "", "a.gguf", "--file off"),
        ("org/repo", "", "../a.gguf", "no file"),
        ("org/repo", "a b", "", "no revision"),
    ):
        with pytest.raises(UsageError, match=words):
            read_source(text, KNOWN, never, revision, file)


@pytest.mark.parametrize("name", ["山田", "...", "(#&)", "Con", ""])
def test_a_name_of_which_nothing_is_left_asks_for_another(name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        plain_id(name)


@given(st.text(max_size=300))
def test_any_name_becomes_a_plain_one_or_is_refused(name: str) -> None:
    try:
        found = plain_id(name)
    except UsageError:
        return
    assert objection(found) is None
    assert found == found.lower()


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    with contextlib.suppress(UsageError, ModelNotFound):
        source = read_source(text, KNOWN, never)
        assert isinstance(source, CatalogueSource | HubSource)
