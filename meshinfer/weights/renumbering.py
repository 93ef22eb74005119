"""Layer numbers in the XML of a part that was made by itself: counted from 0, they become those of
the whole model. States must differ between parts, names are for people. Pure."""

from __future__ import annotations

import re

_LAYER = re.compile(r"(?<![A-Za-z_])(layers[.\[]|past_key_values\.|present\.|h\.)(\d+)")
_STATE = re.compile(r'variable_id="([^"]*)"')


def renumber(xml: str, first: int) -> str:
    """The XML with its layers counted from `first` on; unchanged when they are already."""
    states = _STATE.findall(xml)
    numbers = [int(found) for state in states for _, found in _LAYER.findall(state)]
    if states and not numbers:  # names of another habit: only made different
        return _STATE.sub(lambda found: f'variable_id="{first}.{found[1]}"', xml)
    if first == 0 or (numbers and min(numbers) >= first):
        return xml
    return _LAYER.sub(lambda found: f"{found[1]}{int(found[2]) + first}", xml)
