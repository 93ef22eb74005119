"""The shape in which an endpoint shows an answer; chat.py and completions.py fill it in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from meshinfer.api.answer import Ending
from meshinfer.core.request import FinishReason

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
    """One answer's documents, in the words of one endpoint."""

    @property
    def chunk_kind(self) -> str:
        """`object` of a chunk."""
        ...

    def opening(self) -> list[Document]:
        """Choices of the first chunk; empty when the endpoint has none."""
        ...

    def more(self, text: str) -> list[Document]:
        """Choices of a chunk with text."""
        ...

    def last(self, reason: FinishReason) -> list[Document]:
        """Choices of the chunk that says why the answer ended."""
        ...

    def whole(self, text: str, ending: Ending) -> Document:
        """The answer in one piece."""
        ...

    @property
    def head(self) -> Head: ...


def usage(ending: Ending) -> Document:
    return {
        "prompt_tokens": ending.prompt_tokens,
        "completion_tokens": ending.completion_tokens,
        "total_tokens": ending.prompt_tokens + ending.completion_tokens,
    }
