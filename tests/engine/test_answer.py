"""Stored answers come back as they were, and broken ones are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meshinfer.engine.answer import Answer, AnswerFacts, load_answer, save_answer
from meshinfer.errors import ShardCorrupt

FACTS = AnswerFacts(1, 3, first=True, last=False, input_width=4, output_width=4, vocabulary_size=9)
OUTPUT = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_an_answer_survives_its_files(tmp_path: Path) -> None:
    save_answer(Answer(FACTS, OUTPUT), tmp_path)
    found = load_answer(tmp_path)
    assert found is not None
    assert found.facts == FACTS
    np.testing.assert_array_equal(found.output, OUTPUT)


def test_no_answer_is_none(tmp_path: Path) -> None:
    assert load_answer(tmp_path) is None


def facts_file(folder: Path, text: str) -> None:
    (folder / "answer.json").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"tokens": 1, "other": 2}', "{" + " " * 5000 + "}"],
    ids=["empty", "list", "no_facts", "unknown_fact", "huge"],
)
def test_broken_facts_are_corrupt(tmp_path: Path, text: str) -> None:
    save_answer(Answer(FACTS, OUTPUT), tmp_path)
    facts_file(tmp_path, text)
    with pytest.raises(ShardCorrupt, match="stored answer"):
        load_answer(tmp_path)


class Harmful:
    """Unpickling it would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    save_answer(Answer(FACTS, OUTPUT), tmp_path)
    mark = tmp_path / "mark"
    poison = np.array([Harmful(mark)], dtype=object)
    np.save(tmp_path / "answer.npy", poison, allow_pickle=True)
    with pytest.raises(ShardCorrupt):
        load_answer(tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "output", [OUTPUT.astype(np.float64), OUTPUT[0]], ids=["float64", "vector"]
)
def test_another_kind_of_array_is_corrupt(tmp_path: Path, output: np.ndarray) -> None:
    save_answer(Answer(FACTS, OUTPUT), tmp_path)
    np.save(tmp_path / "answer.npy", output)
    with pytest.raises(ShardCorrupt, match="matrix of float32"):
        load_answer(tmp_path)


def test_the_facts_are_plain_json(tmp_path: Path) -> None:
    save_answer(Answer(FACTS, OUTPUT), tmp_path)
    assert json.loads((tmp_path / "answer.json").read_text())["input_width"] == 4
