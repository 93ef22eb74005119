"""S10: templates and tokenizers of strangers, tried under limits of time and memory."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from meshinfer.errors import StageFailed
from meshinfer.weights.template_check import TrialLimits, check_template, run_limited
from tests.weights.ir_folder import TEMPLATE, make_ir_folder

SHORT = TrialLimits(seconds=10.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ir_folder(tmp_path_factory.mktemp("ir") / "m")


def _with(folder: Path, template: str) -> Path:
    """The tokenizer takes the template of this file when its IR has none."""
    xml = folder / "openvino_tokenizer.xml"
    without = re.sub(r'<chat_template value="[^"]*" />', "", xml.read_text(encoding="utf-8"))
    xml.write_text(without, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.mark.openvino
@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + TEMPLATE,
    ],
)
def test_usual_templates_pass_also_those_that_refuse_a_system_message(
    folder: Path, template: str
) -> None:
    check_template(_with(folder, template), template)


@pytest.mark.openvino
@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ 'a' * 1000000 }}", "makes 1000000 characters of a conversation of"),
        ("{{ raise_exception('never') }}", "refuses a plain question: .*never"),
        ("{{ messages[0].nothing.more }}", "refuses a plain question"),
        ("{% for a in messages %}", "refuses a plain question|cannot be loaded"),
    ],
)
def test_templates_that_are_of_no_use_are_refused(folder: Path, template: str, words: str) -> None:
    with pytest.raises(StageFailed, match=words):
        check_template(_with(folder, template), template)


@pytest.mark.openvino
@pytest.mark.slow
def test_a_template_without_end_is_ended(folder: Path) -> None:
    loops = "{% for a in range(30000) %}{% for b in range(30000) %}{% endfor %}{% endfor %}"
    with pytest.raises(StageFailed, match="did not end within 3 s"):
        check_template(_with(folder, loops), loops, TrialLimits(seconds=3.0))


@pytest.mark.openvino
@pytest.mark.slow
def test_a_template_that_eats_memory_is_ended(folder: Path) -> None:
    eats = "{{ range(900000000) | length }}"
    limits = TrialLimits(seconds=60.0, memory_bytes=600 << 20)
    with pytest.raises(StageFailed, match="of memory for a short conversation"):
        check_template(_with(folder, eats), eats, limits)


@pytest.mark.openvino
@pytest.mark.slow
def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="cannot be loaded|ended its process"):
        check_template(tmp_path, "")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ ().__class__.__mro__[1].__subclasses__() }}", "internals .*__class__"),
        ("{{ x['__globals__'] }}", "internals"),
        ("a" * 300_000, "300000 characters"),
    ],
)
def test_what_shows_its_intention_is_not_even_tried(
    tmp_path: Path, template: str, words: str
) -> None:
    with pytest.raises(StageFailed, match=words):
        check_template(tmp_path, template)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import os; os.abort()", r"ended its process \(code -?\d+\)"),
        ("print('no JSON')", "ended its process"),
        ("print('x' * (4 << 20))", "did not end within"),
    ],
)
def test_a_child_that_crashes_or_floods_is_told(script: str, words: str) -> None:
    with pytest.raises(StageFailed, match=words):
        run_limited([sys.executable, "-c", script], TrialLimits(seconds=2.0))
