"""One stage of a model on one device, whatever computes it. Synchronous; one thread calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from meshinfer.core.step import Step


@dataclass(frozen=True, slots=True)
class StageShape:
    """What goes in and out.

    A first stage takes token ids; any other takes [tokens, input_width] activations in `precision`
    (bf16 as uint16 bits). A last stage gives f32 logits [logit rows, vocabulary_size]; any other
    gives [tokens, output_width] activations. A width is that of the hidden state, and of whatever
    else crosses the cut; it is 0 where token ids come in or logits leave. `cache_tokens` is the
    room for all sequences together, in tokens. `trees`: rows may have parents.
    """

    first: bool
    last: bool
    precision: str
    input_width: int
    output_width: int
    vocabulary_size: int
    cache_tokens: int
    block_size: int
    trees: bool = False


class Stage(Protocol):
    @property
    def shape(self) -> StageShape: ...

    def forward(self, step: Step, hidden: NDArray[Any] | None) -> NDArray[Any]:
        """Release `step.released`, move what rows keep, then compute the rows.

        For a last stage the result has `step.logit_count` rows, in row order; when that is 0 it is
        empty. The array is valid until the next call.
        Raises CacheLost: a row builds on tokens that are not cached; StageFailed: the cache is
        full, or there is a token tree where `shape.trees` says no. A refused step only releases.
        """
        ...

    def keep(self, lengths: Mapping[int, int]) -> None:
        """Forget all sequences but these, and of each what is behind so many tokens."""
        ...

    def cached(self, sequence: int) -> int:
        """Tokens that the cache holds for `sequence`, those of a tree at its end included; 0 when
        it is unknown."""
        ...

    def refuse_trees(self) -> None:
        """From now on `shape.trees` says no: the self-test found them wrong here."""
        ...

    def close(self) -> None:
        """Give back all memory. Idempotent."""
        ...
