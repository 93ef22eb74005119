"""The tokenizer behind a thread of its own: a megabyte of prompt never holds the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from meshinfer.core.request import ChatMessage, Grammar
from meshinfer.engine.grammar import Constraint, GrammarCompiler
from meshinfer.engine.tokenizer import Tokenizer


class ThreadedEncoder:
    """An Encoder over any Tokenizer. `close()` waits for the call that runs.

    `grammars` makes the compiler of grammars when the first one is asked for: it takes a second.
    """

    def __init__(self, tokenizer: Tokenizer, grammars: Callable[[], GrammarCompiler]) -> None:
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._compiler: GrammarCompiler | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    async def encode_chat(self, messages: tuple[ChatMessage, ...]) -> list[int]:
        """Ids of the templated conversation. Raises InvalidRequest."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._tokenizer.encode_chat, messages)

    async def encode_text(self, prompt: str) -> list[int]:
        """Ids of plain text with the tokenizer's own beginning-of-sequence token, if it has one."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._tokenizer.encode_text, prompt)

    async def constrain(self, grammar: Grammar) -> Constraint:
        """The start of an answer that follows `grammar`. Raises InvalidRequest."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._compile, grammar)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _compile(self, grammar: Grammar) -> Constraint:
        if self._compiler is None:
            self._compiler = self._grammars()
        return self._compiler.compile(grammar)
