"""What a model's graph does not say: read from its source, kept in the description."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`weights` says for people how they are kept ("int4 group 128"); `accuracy` what that cost
    against the source, or nothing where it was not measured."""

    architecture: str
    context_length: int  # tokens
    stop_tokens: tuple[int, ...]
    bos: int | None
    chat_template: str
    weights: str = "original"
    accuracy: str = ""
