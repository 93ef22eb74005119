"""The child process in which a stranger's grammar is compiled for the first time (case S10).

    python -m meshinfer.engine.grammar_trial < GRAMMAR

One JSON object (kind, text) enters; one line of JSON leaves. Started by `grammar_check`, which ends
it when it takes too much time or memory: nothing in here can be interrupted.
"""

from __future__ import annotations

import json
import sys
import threading

from meshinfer.core.request import Grammar, GrammarKind
from meshinfer.engine.grammar_source import matcher, serialised, short_reason

_STACK_BYTES = 512 << 10
"""Half of what a thread has on Windows: llguidance recurses along a grammar's references, and a
grammar that overflows the stack must do it here."""

_LIFE_S = 60.0
"""Longer than any parent waits: the child does not outlive by much one that was killed."""

_STEPS = 64  # tokens of an answer that are tried
_BYTES = 255  # 0xff is in no text


class _ByteVocabulary:
    """What llguidance's TokenizerWrapper asks for: a token is a byte, and one more is the end."""

    eos_token_id = _BYTES
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(_BYTES)), b"\xff<none>")
    special_token_ids = (_BYTES,)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def trial(grammar: Grammar) -> str:
    """Why the grammar cannot be used; empty when it can. Compiles it and walks into it."""
    from llguidance import LLTokenizer, TokenizerWrapper

    try:
        source = serialised(grammar)
    except ValueError as error:
        return short_reason(str(error))
    tokenizer = LLTokenizer(TokenizerWrapper(_ByteVocabulary()), eos_token=[_BYTES])
    walker = matcher(tokenizer, source)
    for _ in range(_STEPS):
        allowed = int.from_bytes(walker.compute_bitmask(), "little") & ((1 << _BYTES) - 1)
        if walker.is_error() or not allowed:
            break
        walker.consume_token(allowed.bit_length() - 1)
    return short_reason(walker.get_error()) if walker.is_error() else ""


def main() -> None:
    order = json.loads(sys.stdin.buffer.read())
    grammar = Grammar(GrammarKind(order["kind"]), order["text"])
    said: list[str] = []
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=lambda: said.append(trial(grammar)), daemon=True)
    thread.start()
    thread.join(_LIFE_S)
    sys.stdout.write(json.dumps({"error": said[0]}) + "\n")


if __name__ == "__main__":
    main()
