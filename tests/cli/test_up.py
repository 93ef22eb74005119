"""Flags of `meshinfer up` as settings, and what is refused before anything starts."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from meshinfer.cli import up
from meshinfer.errors import MeshInferError, UsageError
from meshinfer.node.settings import Settings


def parse(*words: str) -> Settings:
    parser = argparse.ArgumentParser()
    parser.add_argument("--state-dir", type=Path, default=Path("state"))
    up.add_arguments(parser)
    return up.settings(parser.parse_args(words))


def test_a_model_of_the_catalogue() -> None:
    settings = parse("--model", "smollm2-135m")
    assert (settings.model, settings.model_source) == ("smollm2-135m", "smollm2-135m")


def test_a_model_of_the_hub_keeps_where_it_comes_from() -> None:
    settings = parse("--model", "OpenVINO/Qwen3-8B-int4-ov")
    assert settings.model == "qwen3-8b-int4-ov"
    assert settings.model_source == "OpenVINO/Qwen3-8B-int4-ov"


def test_a_model_in_a_folder_of_this_pc(tmp_path: Path) -> None:
    folder = tmp_path / "My Model (v2) #1"
    folder.mkdir()
    settings = parse("--model", str(folder))
    assert settings.model == "my-model-v2-1"


@pytest.mark.parametrize("text", ["", "../x", "nothing-of-that-name", "a\0b"])
def test_nonsense_is_no_model(text: str) -> None:
    if not text:
        assert parse("--model", text).model is None
        return
    with pytest.raises(MeshInferError):
        parse("--model", text)


def test_the_disk_and_the_network_of_the_owner(tmp_path: Path) -> None:
    settings = parse(
        "--store", str(tmp_path / "stages"), "--read-only-store", str(tmp_path / "dvd"),
        "--store-limit", "40GB", "--upload-limit", "20MB/s",
    )  # fmt: skip
    assert settings.store == tmp_path / "stages"
    assert settings.read_only_stores == (tmp_path / "dvd",)
    assert settings.store_limit == 40_000_000_000
    assert settings.upload_limit == 20_000_000


def test_an_upload_limit_that_would_bring_nothing_anywhere_is_refused() -> None:
    with pytest.raises(UsageError, match="too little to bring a stage"):
        parse("--upload-limit", "10kB")


@pytest.mark.parametrize(("words", "seconds"), [((), 0.0), (("--hop-delay", "12.5"), 0.0125)])
def test_a_delay_of_hops_is_in_milliseconds(words: tuple[str, ...], seconds: float) -> None:
    assert parse(*words).hop_delay_s == seconds


@pytest.mark.parametrize("text", ["-1", "10001", "nan", "inf"])
def test_a_delay_of_hops_is_bounded(text: str) -> None:
    with pytest.raises(UsageError, match="is not from 0 to 10000 milliseconds"):
        parse("--hop-delay", text)
