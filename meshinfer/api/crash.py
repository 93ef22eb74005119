"""What the log may say of a bug: where and what kind, never the exception's own words.

An exception's text may quote what it choked on, and here that is often a prompt or a key.
"""

from __future__ import annotations

import traceback


def crash_report(error: BaseException) -> str:
    """Types and stack frames of `error` and of what led to it, the first cause first."""
    chain: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop(0)
        if link is None or link in chain:
            continue
        chain.append(link)
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(link.exceptions)
        waiting.append(link.__cause__ or link.__context__)
    return "\n".join(_frames(link) for link in reversed(chain))


def _frames(error: BaseException) -> str:
    stack = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__qualname__}\n{stack}".rstrip()
