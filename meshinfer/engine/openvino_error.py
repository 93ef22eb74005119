"""OpenVINO's exceptions become StageFailed, with the sentence that matters. Called in engine/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from meshinfer.errors import StageFailed

_NOISE = re.compile(r"^(Exception from |Check '.*' failed at |\[ ?(ERROR|GENERAL_ERROR) ?\]\s*$)")
_LONGEST = 300  # characters: an error travels in a message and stands in a status line


def reason(error: BaseException) -> str:
    """The part of an OpenVINO message that is not a source path: `A; B`."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not _NOISE.match(line)]
    return ("; ".join(said) or str(error) or type(error).__name__)[:_LONGEST]


@contextmanager
def openvino_errors(doing: str, remedy: str) -> Iterator[None]:
    """Raise StageFailed for whatever OpenVINO raises in the block; it has no errors of its own."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        raise StageFailed(f"{doing} failed: {reason(error)}.", remedy) from error
