"""What another form of the weights costs: measured on a stored text, in the memory of one range.

Two chains of parts compute the same text, one with the source's own weights, one with the new ones;
the text's tokens enter, a sentence with KL divergence and agreement leaves. Called by the
conversion, range by range; states between ranges are kept on the disk, so that an interrupted
conversion goes on. Both sides compute in f32 without dynamic quantisation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.weights.cut import HIDDEN_INPUT, openvino_errors
from meshinfer.weights.disk import disk_errors

Array = NDArray[Any]

_TEXT = "accuracy_text.txt"
_PLAIN = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """`divergence` is the mean KL divergence in nats; `agreement` the share of positions whose
    most likely token is the same."""

    divergence: float
    agreement: float
    positions: int

    def __str__(self) -> str:
        return (
            f"KL {self.divergence:.4f}, same first token for {100 * self.agreement:.1f} % of "
            f"{self.positions} positions, against the source's own weights"
        )


def stored_text() -> str:
    """English and code, of our own."""
    return resources.files("meshinfer.weights").joinpath(_TEXT).read_text(encoding="utf-8")


class Comparison:
    """States of the two chains, f32 [1, tokens, hidden] each, in `folder`, a file a step.

    Step 0 is the embedding. A step that is kept already is not computed again. Raises StageFailed,
    DiskFull."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def begin(self, source: Array, changed: Array) -> None:
        """Embedded tokens [tokens, hidden] of both sides."""
        self._keep(0, source[None], changed[None])

    def has(self, step: int) -> bool:
        return self._file(step).is_file()

    def advance(self, step: int, source: Any, changed: Any) -> None:
        """Run the ov.Models of a range on the states of step - 1."""
        before = self.states(step - 1)
        self._keep(step, run(source, before[0]), run(changed, before[1]))
        self._file(step - 1).unlink()

    def states(self, step: int) -> tuple[Array, Array]:
        with np.load(self._file(step), allow_pickle=False) as kept:
            return kept["source"], kept["changed"]

    def _keep(self, step: int, source: Array, changed: Array) -> None:
        scratch = self._folder / "new.npz"
        with disk_errors(self._folder):
            np.savez(scratch, source=source, changed=changed)
        scratch.replace(self._file(step))

    def _file(self, step: int) -> Path:
        return self._folder / f"{step}.npz"


def run(model: Any, hidden: Array) -> Array:
    """One part on one sequence from its start: f32 [1, tokens, hidden] -> the same."""
    import openvino as ov

    length = hidden.shape[1]
    feed = {
        HIDDEN_INPUT: hidden,
        "attention_mask": np.ones((1, length), np.int64),
        "position_ids": np.arange(length, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    with openvino_errors("Comparing the new weights with the source's"):
        compiled = ov.Core().compile_model(model, "CPU", _PLAIN)
        request = compiled.create_infer_request()
        for port in compiled.inputs:
            name = port.get_any_name()
            request.set_tensor(name, ov.Tensor(feed[name]))
        request.infer()
        result: Array = request.get_output_tensor(0).data.copy()
        # The CPU plugin of 2026.4 does not free a compiled part that was run: without this, three
        # layers of Qwen2.5 0.5B in INT4 leave 32 MB behind, with it 3.
        compiled.release_memory()
    del request, compiled
    gc.collect()
    return result


def normalised(hidden: Array, weight: Array, epsilon: float) -> Array:
    """The norm in front of a head, f32 [tokens, hidden]."""
    mean = np.mean(np.square(hidden, dtype=np.float64), axis=-1, keepdims=True)
    return np.asarray(hidden / np.sqrt(mean + epsilon) * weight, np.float32)


def compare(source: Array, changed: Array, heads: Iterable[tuple[Array, Array]]) -> Accuracy:
    """`source` and `changed` f32 [tokens, hidden], normalised; `heads` gives both heads' rows, f32
    [rows, hidden] each, a block at a time. Logits exist for one block only."""
    sums = _Sums(len(source))
    for own, new in heads:
        sums.add(source @ own.T, changed @ new.T)
    return sums.result()


class _Sums:
    """Over blocks of the vocabulary: with p of the source, the divergence of a position is
    sum(p (a - b)) - log sum(exp a) + log sum(exp b); running maxima keep the sums finite."""

    def __init__(self, positions: int) -> None:
        self._first = np.full(positions, -np.inf)
        self._second = np.full(positions, -np.inf)
        self._exponentials = np.zeros(positions)
        self._others = np.zeros(positions)
        self._weighted = np.zeros(positions)
        self._best = np.zeros((2, positions), np.int64)
        self._rows = 0

    def add(self, own: Array, new: Array) -> None:
        """Logits of a block, f32 [positions, rows]."""
        own, new = own.astype(np.float64), new.astype(np.float64)
        for side, (logits, top) in enumerate(((own, self._first), (new, self._second))):
            found = logits.argmax(axis=-1)
            is_better = logits[np.arange(len(found)), found] > top
            self._best[side] = np.where(is_better, found + self._rows, self._best[side])
        first = np.maximum(self._first, own.max(axis=-1))
        second = np.maximum(self._second, new.max(axis=-1))
        shrink, shrink_other = np.exp(self._first - first), np.exp(self._second - second)
        weights = np.exp(own - first[:, None])
        self._exponentials = self._exponentials * shrink + weights.sum(axis=-1)
        self._weighted = self._weighted * shrink + (weights * (own - new)).sum(axis=-1)
        others = np.exp(new - second[:, None]).sum(axis=-1)
        self._others = self._others * shrink_other + others
        self._first, self._second = first, second
        self._rows += own.shape[1]

    def result(self) -> Accuracy:
        divergence = (
            self._weighted / self._exponentials
            - (self._first + np.log(self._exponentials))
            + (self._second + np.log(self._others))
        )
        agreement = float(np.mean(self._best[0] == self._best[1]))
        # Rounding of sums leaves -1e-16 where both sides are the same.
        return Accuracy(max(0.0, float(np.mean(divergence))), agreement, len(divergence))
