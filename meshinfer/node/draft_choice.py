"""Which model of this PC drafts for the one that is served: by name, or the smallest that may.

Two models go together only when every token id means the same in both (case C21): proved by the
digest of what their tokenizers say, not by names. Blocks; called in a worker thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshinfer.core.ids import Digest, ModelId
from meshinfer.core.model import ModelShape, UnitRange
from meshinfer.core.units import format_bytes
from meshinfer.errors import StageFailed
from meshinfer.weights.folder import ModelFolder

MOST_SHARE = 0.45
"""Of the large model's weights: a draft that costs more than that hardly saves anything."""

AUTO, NO_DRAFT, OFF = "auto", "none", "off"
"""The words of `up --draft` beside a model's name; `off`: nothing is guessed at all."""

DigestOf = Callable[[ModelFolder], Digest]
"""Raises StageFailed: its tokenizer cannot be read."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """`shape` None: no model drafts, and `why` says why, unless nobody asked for one."""

    shape: ModelShape | None
    why: str = ""


def smallest_draft(
    target: ModelFolder, folders: Sequence[ModelFolder], digest_of: DigestOf
) -> DraftChoice:
    """Of the models here, the one with the least weights that has the target's vocabulary."""
    most = MOST_SHARE * _weights(target)
    fitting = [one for one in folders if one.model != target.model and _weights(one) <= most]
    wanted = digest_of(target) if fitting else None
    for one in sorted(fitting, key=_weights):
        try:
            if digest_of(one) == wanted:
                return DraftChoice(one.shape)
        except StageFailed as error:  # its tokenizer cannot be read: another may still do
            log.warning("%s cannot draft: %s", one.model, error)
    return DraftChoice(
        None,
        f"no model here has the vocabulary of {target.model} and at most {format_bytes(int(most))}",
    )


def named_draft(target: ModelFolder, draft: ModelFolder, digest_of: DigestOf) -> DraftChoice:
    """The one that a person named, or why it cannot be."""
    if _weights(draft) >= _weights(target):
        return DraftChoice(None, f"{draft.model} is not smaller than {target.model}")
    if digest_of(draft) != digest_of(target):
        return DraftChoice(
            None,
            f"{draft.model} has another vocabulary than {target.model}: its guesses mean others",
        )
    return DraftChoice(draft.shape)


def no_draft(target: ModelId, wanted: str, error: str) -> DraftChoice:
    """The wanted one cannot be had."""
    if wanted == AUTO:
        return DraftChoice(None, f"no model here could be compared with {target}: {error}")
    return DraftChoice(None, f"{wanted}, to draft for {target}, cannot be had: {error}")


def _weights(folder: ModelFolder) -> int:
    shape = folder.shape
    return shape.weight_bytes(UnitRange(0, len(shape.units)))
