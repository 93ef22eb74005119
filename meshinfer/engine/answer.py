"""What a stage answered to the self-test's input, kept beside its files.

Made where the model is cut, by a device that is trusted (the CPU), and compared where the stage is
loaded: GPU drivers have compiled, warmed up and answered fluently, but wrongly (openvino issues
37419, 37223). JSON and a plain array: nothing is unpickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshinfer.errors import ShardCorrupt

_FACTS = "answer.json"
_OUTPUT = "answer.npy"
_LARGEST_FACTS = 4096  # bytes


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Which stage and which input the answer belongs to."""

    input_version: int
    tokens: int
    first: bool
    last: bool
    input_width: int
    output_width: int
    vocabulary_size: int


@dataclass(frozen=True, slots=True)
class Answer:
    facts: AnswerFacts
    output: NDArray[np.float32]  # [rows, width]


def save_answer(answer: Answer, folder: Path) -> None:
    """Write `answer.json` and `answer.npy` into an existing folder. Blocks."""
    np.save(folder / _OUTPUT, answer.output, allow_pickle=False)
    (folder / _FACTS).write_text(json.dumps(asdict(answer.facts)), encoding="utf-8")


def load_answer(folder: Path) -> Answer | None:
    """The answer stored in `folder`; None when there is none. Blocks. Raises ShardCorrupt."""
    if not (folder / _FACTS).exists():
        return None
    try:
        if (folder / _FACTS).stat().st_size > _LARGEST_FACTS:
            raise ValueError("too large")
        facts = AnswerFacts(**json.loads((folder / _FACTS).read_text(encoding="utf-8")))
        output = np.load(folder / _OUTPUT, allow_pickle=False)
        if output.dtype != np.float32 or output.ndim != 2:
            raise ValueError("not a matrix of float32")
    except (OSError, ValueError, TypeError) as error:
        raise ShardCorrupt(
            f"The stage's stored answer cannot be read: {error}.", "Fetch the stage again."
        ) from error
    return Answer(facts, output)
