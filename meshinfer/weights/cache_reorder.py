"""The reordering of cached keys and values that the GPU plugin wants to see, checked and added.

Its fusions (kv_cache_fusion.cpp, indirect_kv_cache.cpp) match, for the keys and the values of an
attention: ReadValue -> Gather by a Parameter on axis 0 or 1 -> Concat, the past first -> Assign of
the same variable, and the attention reads the Concat. An IR that was exported for one sequence only
may lack the Gather: it then runs unfused, about an eighth slower. Called by the cut, and by
`verify` for what it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshinfer.weights.graph import READ_VALUE
from meshinfer.weights.key_values import ASSIGN, ATTENTION

BEAM_INPUT = "beam_idx"

_BETWEEN = frozenset({"Broadcast", "Convert", "Reshape", "Unsqueeze"})
"""What repeats keys and values for grouped queries; the plugin takes it into the attention."""


def reorder_faults(model: Any) -> tuple[str, ...]:
    """Why caches of an ov.Model would not be fused on a GPU, a sentence each; empty when all are
    as they should be."""
    faults = []
    for attention in _of_kind(model, ATTENTION):
        for number, what in ((1, "keys"), (2, "values")):
            why = _fault(_joined(attention.input(number).get_source_output().get_node()))
            if why is not None:
                faults.append(f"The {what} of '{attention.get_friendly_name()}' {why}.")
    return tuple(faults)


def add_reorder(model: Any) -> int:
    """Put the missing Gathers into an ov.Model; how many there were. `beam_idx` (i32 [batch]) is
    added where the model has no such input. The numbers do not change: at run time it counts up."""
    lacking = list(_lacking(model))
    if not lacking:
        return 0
    beams = _beams(model)
    for past, concat in lacking:
        concat.input(0).replace_source_output(_gather(past, beams))
    model.validate_nodes_and_infer_types()
    return len(lacking)


def _lacking(model: Any) -> Iterator[tuple[Any, Any]]:
    """(output with the past, Concat that reads it as it is) of every state."""
    for state in _of_kind(model, READ_VALUE):
        for past in _converted(state.output(0)):
            for reader in past.get_target_inputs():
                concat = reader.get_node()
                if concat.get_type_name() == "Concat" and reader.get_index() == 0:
                    yield past, concat


def _converted(output: Any) -> Iterator[Any]:
    """The output, and its conversions to another type."""
    yield output
    for reader in output.get_target_inputs():
        if reader.get_node().get_type_name() == "Convert":
            yield reader.get_node().output(0)


def _beams(model: Any) -> Any:
    import numpy as np
    from openvino import opset13 as ops

    for port in model.inputs:
        if BEAM_INPUT in port.names:
            return port.get_node().output(0)
    beams = ops.parameter([-1], np.int32, name=BEAM_INPUT)
    beams.output(0).set_names({BEAM_INPUT})
    model.add_parameters([beams])
    return beams.output(0)


def _gather(past: Any, beams: Any) -> Any:
    import numpy as np
    from openvino import opset13 as ops

    name = f"{past.get_node().get_friendly_name()}/reordered"
    axis = ops.constant(np.int64(0))
    axis.set_friendly_name(f"{name}/axis")
    gather = ops.gather(past, beams, axis)
    gather.set_friendly_name(name)
    return gather.output(0)


def _joined(node: Any) -> Any:
    """The operation that joins past and new, behind what repeats heads."""
    while node.get_type_name() in _BETWEEN:
        node = _source(node, 0)
    return node


def _fault(concat: Any) -> str | None:
    if concat.get_type_name() != "Concat":
        return f"come from a {concat.get_type_name()}, not from the past and the new ones joined"
    past = _source(concat, 0)
    if past.get_type_name() != "Gather":
        return "are not reordered"
    if _source(past, 1).get_type_name() != "Parameter":
        return "are reordered by numbers that are computed, not given"
    if not _is_first_axis(_source(past, 2)):
        return "are reordered on another axis than the first two"
    state = _source(past, 0)
    if state.get_type_name() == "Convert":
        state = _source(state, 0)
    if state.get_type_name() != READ_VALUE:
        return f"have a past that comes from a {state.get_type_name()}, not from a state"
    if not _is_kept(concat, str(state.get_variable_id())):
        return "are not what is kept for the next step"
    return None


def _is_first_axis(constant: Any) -> bool:
    if constant.get_type_name() != "Constant":
        return False
    values = constant.get_data().reshape(-1)
    return len(values) == 1 and int(values[0]) in (0, 1)


def _is_kept(concat: Any, variable: str) -> bool:
    readers = [
        reader.get_node()
        for output in _converted(concat.output(0))
        for reader in output.get_target_inputs()
    ]
    return any(
        reader.get_type_name() == ASSIGN and str(reader.get_variable_id()) == variable
        for reader in readers
    )


def _source(node: Any, number: int) -> Any:
    return node.input(number).get_source_output().get_node()


def _of_kind(model: Any, kind: str) -> list[Any]:
    return [node for node in model.get_ordered_ops() if node.get_type_name() == kind]
