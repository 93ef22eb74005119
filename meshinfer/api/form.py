"""The shape in which an endpoint shows an answer; chat.py and completions.py fill it in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from meshinfer.api.answer import ChoiceEnd, Ending, Text
from meshinfer.api.whole import WholeChoice

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """What is equal in every chunk of an answer."""

    id: str
    created: int  # seconds since 1970
    model: str

    def document(self, kind: str, choices: list[Document]) -> Document:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class AnswerForm(Protocol):
    """One answer's documents, in the words of one endpoint. One object an answer."""

    @property
    def head(self) -> Head: ...

    @property
    def chunk_kind(self) -> str:
        """`object` of a chunk."""
        ...

    def opening(self, choice: int) -> Document | None:
        """What a choice's first chunk holds; None when the endpoint has none."""
        ...

    def more(self, piece: Text) -> Document:
        """A choice in a chunk with text. Called in the order of the pieces."""
        ...

    def last(self, end: ChoiceEnd) -> Document:
        """A choice in the chunk that says why it ended."""
        ...

    def whole(self, choices: list[WholeChoice], ending: Ending) -> Document:
        """The answer in one piece."""
        ...


def usage(ending: Ending) -> Document:
    return {
        "prompt_tokens": ending.prompt_tokens,
        "completion_tokens": ending.completion_tokens,
        "total_tokens": ending.prompt_tokens + ending.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": ending.cached_tokens},
    }
