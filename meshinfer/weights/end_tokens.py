"""Which tokens end an answer: the union of every source, as each alone is wrong for some model.

generation_config lists one, the tokenizer another, and the chat template ends turns with a third
(mlx-vlm issue 1932). Pure. Called when a model is described.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
)
"""Names that vocabularies give to the end of a turn or text (as llama.cpp's list of EOG tokens)."""

_AFTER_CONTENT = re.compile(
    r"content(?:['\"]\])?(?:\s*\|\s*trim)?\s*(?:\+\s*['\"]|\}\}\s*)(<[^<>'\"\s{}]+>)"
)
"""The marker that a template puts right behind a message: `content + '<|im_end|>'` or
`{{ content }}<|im_end|>`."""


def end_tokens(named: Iterable[Any], template: str, special: Mapping[str, int]) -> tuple[int, ...]:
    """Ascending, without doubles.

    `named` are eos entries as configurations have them: an id, a list of ids, a token's text, or
    None. `special` holds control tokens and their ids: ordinary text never ends an answer.
    """
    found: set[int] = set()
    for entry in named:
        found.update(_ids(entry, special))
    markers = {*TURN_ENDS, *_AFTER_CONTENT.findall(template)}
    found.update(special[marker] for marker in markers if marker in special)
    return tuple(sorted(found))


def _ids(entry: Any, special: Mapping[str, int]) -> Iterable[int]:
    match entry:
        case bool() | None:
            return ()
        case int():
            return (entry,) if entry >= 0 else ()
        case str():
            return (special[entry],) if entry in special else ()
        case {"content": str(text)}:  # an AddedToken in tokenizer_config.json
            return (special[text],) if text in special else ()
        case list() | tuple():
            return [one for part in entry for one in _ids(part, special)]
        case _:
            return ()
