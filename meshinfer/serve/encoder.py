"""The tokenizer behind a thread of its own: a megabyte of prompt never holds the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from meshinfer.core.request import ChatMessage
from meshinfer.engine.tokenizer import Tokenizer


class ThreadedEncoder:
    """An Encoder over any Tokenizer. `close()` waits for the call that runs."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    async def encode_chat(self, messages: tuple[ChatMessage, ...]) -> list[int]:
        """Ids of the templated conversation. Raises InvalidRequest."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._tokenizer.encode_chat, messages)

    async def encode_text(self, prompt: str) -> list[int]:
        """Ids of plain text with the tokenizer's own beginning-of-sequence token, if it has one."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._tokenizer.encode_text, prompt)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
