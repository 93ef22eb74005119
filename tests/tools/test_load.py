"""The load generator as a person runs it, against the project's own API server."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from meshinfer.core.request import GenerationRequest
from tests.api.scripted_door import MODEL, ScriptedDoor, Step, steps
from tests.api.served import served
from tests.source_tree import ROOT


async def run(url: str, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the JSON that it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "tools" / "load.py"),
        *(url, "--model", MODEL.model, "--json", *words),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    document: dict[str, Any] = json.loads(printed)
    assert process.returncode is not None
    return process.returncode, document


def word_of(request: GenerationRequest) -> str:
    return request.messages[-1].content.split('"')[1]


@pytest.mark.slow
async def test_a_closed_loop_with_words_that_are_repeated() -> None:
    def repeat(request: GenerationRequest) -> list[Step]:
        return steps(word_of(request)[:3], word_of(request)[3:])

    async with served(ScriptedDoor(repeat)) as server:
        code, found = await run(
            server.url, "--users", "8", "--requests", "32", "--check", "words", "--kind", "1:9:9"
        )
    assert code == 0
    assert (found["requests"], found["answered"], found["tokens"]) == (32, 32, 64)
    assert found["words"] == {"repeated": 32, "foreign": 0}
    assert found["first_token_s"]["count"] == 32


@pytest.mark.slow
async def test_a_word_that_reaches_somebody_else_is_found() -> None:
    """C16: each answer also holds the word of the question before."""
    words: list[str] = []

    def leak(request: GenerationRequest) -> list[Step]:
        words.append(word_of(request))
        return steps(f"{words[-1]} x{words[-2:][0].upper()}y")

    async with served(ScriptedDoor(leak)) as server:
        code, found = await run(
            server.url, "--rate", "200", "--requests", "10", "--check", "words", "--no-stream"
        )
    assert code == 1
    assert found["words"] == {"repeated": 10, "foreign": 9}
