"""Features that clients may ask for and we do not have: refused, never silently dropped.

A field in its neutral value asks for nothing and passes, as many clients always send it. Fields
that are not known here are tolerated.
"""

from __future__ import annotations

from meshinfer.api.fields import wrong
from meshinfer.errors import InvalidRequest

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "structured_outputs": ({},),  # vLLM's newer spelling of guided_*
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "functions": ([],),
    "function_call": ("none",),
}


def refuse_unsupported(body: dict[str, object]) -> None:
    """Raises InvalidRequest that names the first field which asks for a missing feature."""
    for name, neutral in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and not any(_is_same(value, one) for one in neutral):
            raise _missing(name)
    _refuse_tools(body)


def _refuse_tools(body: dict[str, object]) -> None:
    """`tool_choice` none asks for no call, so the tools beside it change nothing. Any other
    choice, and the default "auto", would promise calls that never come."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise wrong("tools", "a list")
    if choice not in (None, "none", "auto"):
        raise _missing("tool_choice")
    if tools and choice != "none":
        raise _missing("tools")


def _is_same(value: object, neutral: object) -> bool:
    """Equal, and both or neither a bool: to Python true is 1 and false is 0."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


def _missing(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{name}' is not supported with this value.", "Leave it out.", param=name
    )
