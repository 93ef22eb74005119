"""One name for one operation: the store finds the weights of a stage by name.

OpenVINO does not mind equal friendly names, and parts that were exported one by one have many.
Called by the cut and when parts are joined.
"""

from __future__ import annotations

from typing import Any

_KEPT_FIRST = ("Parameter", "Result")
"""The paged-attention pass knows inputs by their friendly names."""


def make_names_unique(model: Any) -> int:
    """Rename all operations of an ov.Model but the first with a name; how many were renamed. Equal
    models get equal names."""
    nodes = model.get_ordered_ops()
    first = [node for node in nodes if node.get_type_name() in _KEPT_FIRST]
    taken = {str(node.get_friendly_name()) for node in nodes}
    seen: set[str] = set()
    renamed = 0
    for node in [*first, *(node for node in nodes if node.get_type_name() not in _KEPT_FIRST)]:
        name = str(node.get_friendly_name())
        if name in seen:
            name = _free(name, taken)
            node.set_friendly_name(name)
            taken.add(name)
            renamed += 1
        seen.add(name)
    return renamed


def _free(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}#{number}" in taken:
        number += 1
    return f"{name}#{number}"
