"""Parts of a model, one behind the other, become one graph. The inverse of the cut.

Called by the assembly. The parts' graphs change; weights stay where they are mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshinfer.errors import StageFailed
from meshinfer.weights.cut import HIDDEN_INPUT, copy_runtime_info, openvino_errors
from meshinfer.weights.unique_names import make_names_unique


def stitch(parts: Sequence[Any]) -> Any:
    """The ov.Model that computes all `parts` in order. Inputs of one name become one input.

    Raises StageFailed: a part has no `inputs_embeds`, widths differ, or two share a state.
    """
    import openvino as ov

    inputs: dict[str, Any] = {}
    sinks: list[Any] = []
    states: set[str] = set()
    carried: Any = None
    with openvino_errors("Joining the parts of the model"):
        for number, part in enumerate(parts):
            if carried is not None:
                _replace(part.input(HIDDEN_INPUT), carried)
            for port in part.inputs:
                _share(port, inputs, carried is not None)
            own = {str(variable.info.variable_id) for variable in part.get_variables()}
            if own & states:
                raise StageFailed(f"Part {number} has a state of the parts before: {min(own)}.")
            states |= own
            sinks += part.get_sinks()
            (result,) = part.get_results()
            carried = result.input(0).get_source_output()
        whole = ov.Model([result], sinks, list(inputs.values()), "whole")
        copy_runtime_info(parts[0], whole)
        whole.validate_nodes_and_infer_types()
        make_names_unique(whole)
    return whole


def _share(port: Any, inputs: dict[str, Any], has_carried: bool) -> None:
    name = port.get_any_name()
    if has_carried and name == HIDDEN_INPUT:
        return
    if name in inputs:
        _replace(port, inputs[name].output(0))
    else:
        inputs[name] = port.get_node()


def _replace(old: Any, new: Any) -> None:
    for consumer in list(old.get_target_inputs()):
        consumer.replace_source_output(new)
