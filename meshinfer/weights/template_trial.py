"""The child process in which a stranger's tokenizer and chat template are tried.

    python -m meshinfer.weights.template_trial FOLDER

A folder with a tokenizer enters; one line of JSON leaves. Started by `template_check`, which ends
it when it takes too much time or memory: nothing in here can be interrupted.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_LONG = "All work and no play makes Jack a dull boy. " * 100
CONVERSATIONS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "What is the capital of France?"),),
    (("user", "Hello!"), ("assistant", "Hello, how can I help?"), ("user", "Tell me a joke.")),
    (("system", "You are brief."), ("user", "Zo\u00eb asks: {{ 7 * 7 }} <|im_end|> \u5c71\u7530?")),
    (("user", _LONG),),
)
"""The first is the least that a chat needs; templates may refuse others (a system message)."""

_TEMPLATE_REASON = re.compile(r"error: (.+?) at row \d+")
PROBE = "The quick brown fox, \u5c71\u7530."


def trial(folder: Path) -> dict[str, Any]:
    """`template`: whether there is one; `lengths`: characters in and out of each conversation, out
    -1 where it was refused; `refusal`: why the first was; `tokens` of a short text."""
    import openvino_genai

    tokenizer = openvino_genai.Tokenizer(str(folder))
    tokens = int(tokenizer.encode(PROBE).input_ids.data.size)
    if not tokenizer.chat_template:
        return {"template": False, "lengths": [], "refusal": "", "tokens": tokens}
    lengths: list[tuple[int, int]] = []
    refusal = ""
    for conversation in CONVERSATIONS:
        history = [{"role": role, "content": content} for role, content in conversation]
        before = sum(len(content) for _, content in conversation)
        try:
            text = tokenizer.apply_chat_template(history, add_generation_prompt=True)
            lengths.append((before, len(text)))
        except (RuntimeError, ValueError, TypeError) as error:
            refusal = refusal if lengths else _reason(error)
            lengths.append((before, -1))
    return {"template": True, "lengths": lengths, "refusal": refusal, "tokens": tokens}


def _reason(error: Exception) -> str:
    found = _TEMPLATE_REASON.search(str(error))
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return (found[1] if found else lines[0])[:200]


def main() -> None:
    try:
        found = trial(Path(sys.argv[1]))
    except (RuntimeError, ValueError, TypeError, UnicodeDecodeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        found = {"error": lines[-1][:200]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
