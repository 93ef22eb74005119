from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from meshinfer.errors import MeshInferError, ShardCorrupt, StageFailed
from meshinfer.weights.ir_file import IrOutline
from meshinfer.weights.prebuilt import adopt, weights_text
from meshinfer.weights.prepare import AS_IT_IS, prepare
from meshinfer.weights.progress import Progress, untold
from meshinfer.weights.source import LocalSource
from tests.weights.gguf_models import make_gguf
from tests.weights.ir_folder import TEMPLATE, make_ir_folder, write_json

openvino = [pytest.mark.openvino, pytest.mark.slow]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ir_folder(tmp_path_factory.mktemp("ir") / "Tiny-int4-ov")


@pytest.fixture
def ir(tmp_path: Path, made: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "Zoë (山田)" / "ir"))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


class TestAdopt:
    pytestmark = openvino

    def test_what_is_needed_is_linked_and_described(self, ir: Path, work: Path) -> None:
        told: list[Progress] = []
        facts = adopt(ir, work, told.append)
        names = {path.name for path in work.iterdir()}
        assert names == {path.name for path in ir.iterdir()} - {"README.md"}
        assert not any(path.is_symlink() for path in work.iterdir())
        assert (facts.architecture, facts.context_length, facts.bos) == ("llama", 512, 0)
        assert facts.stop_tokens == (0, 1)
        assert facts.chat_template == TEMPLATE
        total = sum((work / name).stat().st_size for name in names)
        assert told[-1] == Progress("copy", total, total)

    def test_the_hub_s_links_into_its_cache_are_not_kept(self, ir: Path, work: Path) -> None:
        """A cache may be emptied any day."""
        links = ir.parent / "snapshot"
        links.mkdir()
        for path in ir.iterdir():
            (links / path.name).symlink_to(path)
        adopt(links, work, untold)
        shutil.rmtree(ir)
        shutil.rmtree(links)
        assert all(path.is_file() and not path.is_symlink() for path in work.iterdir())

    def test_links_take_no_room(self, ir: Path, work: Path) -> None:
        adopt(ir, work, untold)
        assert os.path.samefile(ir / "openvino_model.bin", work / "openvino_model.bin")

    def test_a_second_call_after_a_cut_has_the_same_result(self, ir: Path, work: Path) -> None:
        (work / "openvino_model.bin").write_bytes(b"half")
        adopt(ir, work, untold)
        assert os.path.samefile(ir / "openvino_model.bin", work / "openvino_model.bin")

    def test_without_small_files_the_tokenizer_s_own_words_count(
        self, ir: Path, work: Path
    ) -> None:
        (ir / "tokenizer_config.json").unlink()
        (ir / "generation_config.json").unlink()
        facts = adopt(ir, work, untold)
        assert facts.chat_template == TEMPLATE
        assert 1 in facts.stop_tokens

    def test_a_model_folder_of_our_own_is_taken_with_what_it_knows(self, tmp_path: Path) -> None:
        make_gguf(tmp_path / "a.gguf")
        first = prepare(LocalSource(tmp_path / "a.gguf"), tmp_path / "m", AS_IT_IS, untold)
        again = prepare(LocalSource(first.path), tmp_path / "n", None, untold)
        assert again.model == first.model
        assert again.stop_tokens == first.stop_tokens
        assert again.shape.context_length == first.shape.context_length
        assert again.description.chat_template == first.description.chat_template


def _drop(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def _cut_bin(folder: Path) -> None:
    with (folder / "openvino_model.bin").open("r+b") as file:
        file.truncate(1000)


def _in_model(old: str, new: str) -> Any:
    def change(folder: Path) -> None:
        path = folder / "openvino_model.xml"
        text = path.read_text(encoding="utf-8")
        changed = re.sub(old, new, text, count=1)
        assert changed != text
        path.write_text(changed, encoding="utf-8")

    return change


def _vision(folder: Path) -> None:
    for ending in ("xml", "bin"):
        (folder / f"openvino_model.{ending}").rename(folder / f"openvino_language_model.{ending}")


@pytest.mark.openvino
@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (_drop("openvino_tokenizer.xml"), StageFailed, "no OpenVINO tokenizer"),
        (_drop("openvino_detokenizer.bin"), StageFailed, "openvino_detokenizer.bin is missing"),
        (_drop("openvino_model.bin"), ShardCorrupt, "openvino_model.bin is missing"),
        (_drop("openvino_model.xml"), ShardCorrupt, "openvino_model.xml is missing"),
        (_drop("config.json"), ShardCorrupt, "config.json is missing"),
        (_vision, StageFailed, "pictures and text"),
        (_cut_bin, ShardCorrupt, "outside the model's .bin"),
        (_in_model(r'offset="\d+"', 'offset="99999999999"'), ShardCorrupt, "outside"),
        (_in_model(r'offset="\d+"', 'offset="-8"'), ShardCorrupt, "impossible"),
        (_in_model(r'offset="(\d+)"', r'offset="\1" path="/etc/passwd"'), StageFailed, "path"),
        (_in_model("<net ", '<!DOCTYPE x [<!ENTITY a "aa">]><net '), ShardCorrupt, "document type"),
        (_in_model("</net>", ""), ShardCorrupt, "cannot be read"),
    ],
)
def test_what_is_damaged_or_made_to_harm_is_refused(
    ir: Path, work: Path, damage: Any, error: type[MeshInferError], words: str
) -> None:
    """S10; nothing of it is loaded."""
    damage(ir)
    with pytest.raises(error, match=words) as caught:
        adopt(ir, work, untold)
    assert list(work.iterdir()) == []
    assert caught.value.cause


@pytest.mark.parametrize(
    ("noted", "weights", "words"),
    [
        ({"mode": "int4_sym", "group_size": "128", "ratio": "1.0"}, {}, "int4 group 128"),
        ({"mode": "int4_asym", "group_size": "64"}, {}, "int4-asym group 64"),
        ({"mode": "int4_sym", "group_size": "-1", "ratio": "1"}, {}, "int4 per channel"),
        ({"mode": "int4_asym", "group_size": "128", "ratio": "0.8"}, {},
         "int4-asym group 128 in 80% of layers"),
        ({"mode": "int8_asym", "group_size": "-1"}, {}, "int8"),
        ({"mode": "nf4", "group_size": "64"}, {}, "nf4 group 64"),
        ({}, {"u4": 500, "f16": 40, "u8": 300}, "int4"),
        ({}, {"i8": 500, "f32": 40}, "int8"),
        ({}, {"f16": 5}, "f16"),
        ({}, {}, "original"),
    ],
)  # fmt: skip
def test_how_weights_are_kept_is_told_from_what_the_ir_notes(
    tmp_path: Path, noted: dict[str, str], weights: dict[str, int], words: str
) -> None:
    information = {("nncf", "weight_compression", key): value for key, value in noted.items()}
    assert weights_text(IrOutline(information, weights), tmp_path) == words


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"quantization_config": {"bits": 4, "sym": True, "group_size": 128}}, "int4 group 128"),
        ({"quantization_config": {"bits": 8}}, "int8"),
        ({"quantization_config": None}, "f16"),
        ({}, "f16"),
    ],
)
def test_or_from_the_exporter_s_settings(
    tmp_path: Path, content: dict[str, Any], words: str
) -> None:
    write_json(tmp_path / "openvino_config.json", content)
    assert weights_text(IrOutline({}, {"f16": 1}), tmp_path) == words
