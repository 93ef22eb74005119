"""A chat template and tokenizer of a stranger, before a model is published (case S10).

A folder with a tokenizer enters; nothing leaves, or StageFailed. The template is tried on a few
conversations in a child process with limits of time and memory. Called by `prepare`.

What this cannot find: a template that is harmless until a certain word comes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from meshinfer.core.units import format_bytes
from meshinfer.errors import StageFailed

MOST_TEMPLATE_CHARACTERS = 256 << 10
"""The longest that are known, with tools and documents, have about 30 thousand."""

_INTERNALS = re.compile(r"__\w+__")
"""How templates of attackers climb from a value to Python's modules (CVE-2024-34359). Ours are
evaluated by a library that has none, so this only tells whose they are."""

_POLL_S = 0.05
_MOST_OUTPUT = 64 << 10
_CHOOSE = "Choose another model: this one may be meant to do harm."


@dataclass(frozen=True, slots=True)
class TrialLimits:
    seconds: float = 60.0  # of which loading takes one to five
    memory_bytes: int = 3 << 30  # OpenVINO and a vocabulary of 250 000 take about 0.6
    output_growth: int = 8  # characters of a conversation in the template, for each of its own


LIMITS = TrialLimits()


def check_template(folder: Path, template: str, limits: TrialLimits = LIMITS) -> None:
    """Raises StageFailed: the template attacks, loops, explodes or refuses the plainest question,
    or the tokenizer cannot be loaded. A model without a template passes: it completes text."""
    if len(template) > MOST_TEMPLATE_CHARACTERS:
        raise StageFailed(f"The chat template has {len(template)} characters.", _CHOOSE)
    found = _INTERNALS.search(template)
    if found is not None:
        raise StageFailed(
            f"The chat template reaches into Python's internals ({found[0][:40]}).", _CHOOSE
        )
    command = [sys.executable, "-m", "meshinfer.weights.template_trial", str(folder)]
    _judge(run_limited(command, limits), limits)


def run_limited(command: Sequence[str], limits: TrialLimits) -> dict[str, Any]:
    """The JSON object that a command prints, which is ended beyond its limits. Raises
    StageFailed."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        try:
            _watch(child, limits)
        finally:
            child.kill()
        assert child.stdout is not None
        said = child.stdout.read(1 << 20)
        code = child.wait()
    try:
        content = json.loads(said)
    except ValueError as error:
        raise StageFailed(
            f"The model's tokenizer or chat template ended its process (code {code}).", _CHOOSE
        ) from error
    assert isinstance(content, dict)
    return content


def _watch(child: subprocess.Popen[bytes], limits: TrialLimits) -> None:
    end = time.monotonic() + limits.seconds
    while True:
        try:
            child.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            pass
        else:
            return
        if time.monotonic() > end:
            raise StageFailed(
                f"The model's chat template did not end within {limits.seconds:.0f} s.", _CHOOSE
            )
        taken = _memory(child.pid)
        if taken > limits.memory_bytes:
            raise StageFailed(
                f"The model's tokenizer or chat template took {format_bytes(taken)} of memory for "
                "a short conversation.",
                _CHOOSE,
            )


def _memory(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0  # it has just ended


def _judge(found: dict[str, Any], limits: TrialLimits) -> None:
    if "error" in found:
        raise StageFailed(
            f"The model's tokenizer cannot be loaded: {found['error']}", "Choose another model."
        )
    if found["tokens"] <= 0:
        raise StageFailed("The model's tokenizer makes no tokens.", "Choose another model.")
    if not found["template"]:
        return
    for before, after in found["lengths"]:
        if after > _MOST_OUTPUT + limits.output_growth * before:
            raise StageFailed(
                f"The chat template makes {after} characters of a conversation of {before}.",
                _CHOOSE,
            )
    if found["lengths"][0][1] < 0:
        raise StageFailed(
            f"The model's chat template refuses a plain question: {found['refusal']}",
            "Choose another model.",
        )
