"""A stage's stateful IR becomes a graph with paged attention, rows of tokens and exact ports.

Called while a stage loads; the graph changes in place. A transformed graph cannot be saved, as the
pass keeps head sizes where serialisation drops them, so this runs at every load.
"""

from __future__ import annotations

from typing import Any

from meshinfer.engine.openvino_error import openvino_errors
from meshinfer.engine.ports import HIDDEN_INPUT, TOKEN_INPUT, Ports
from meshinfer.errors import StageFailed

WANTED_INPUT = "sampled_tokens_indices"
POSITION_INPUT = "position_ids"

PAGED_INPUTS = (
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
)

BIAS_INPUTS = ("qq_bias", "qq_bias_begins")
"""There when the stage computes token trees: which new tokens see each other."""

_KNOWN = {TOKEN_INPUT, HIDDEN_INPUT, WANTED_INPUT, POSITION_INPUT, *PAGED_INPUTS, *BIAS_INPUTS}
_BEHIND_HEAD = {"Add", "Convert", "Divide", "Multiply", "Reshape", "Tanh", "Transpose"}
"""What may stand between the head's MatMul and the Result: bias, soft capping (genai,
find_llm_matmul)."""

_SLIDING_WINDOW, _ALIBI = 10, 11
"""Inputs of PagedAttentionExtension: a scalar, 0 for none, and slopes, empty for none (openvino,
paged_attention.hpp)."""

_ROW_NUMBERS = {"Convert", "Reshape", "Unsqueeze"}
"""What may stand between the token ids and the lookup."""


def transform(model: Any, ports: Ports, precision: str, trees: bool = False) -> None:
    """Page the attention, lay tokens on axis 0, put `precision` on the ports, and let the head see
    only wanted rows. With `trees` the graph has BIAS_INPUTS, where OpenVINO and the model allow it.
    Raises StageFailed with the reason when the graph does not allow what else is needed."""
    if ports.has_attention:
        _page(model, trees)
        if trees and not _sees_by_position(model):
            _remove_bias(model)
    if not ports.first:
        _prepare_hidden_input(model, ports, precision)
    if precision == "bf16":
        _round_lookups(model)
        if not ports.last:
            _round_output(model)
    if ports.last:
        _gather_before_head(model)
    with openvino_errors("Checking the transformed model", "Choose another model."):
        model.validate_nodes_and_infer_types()
    _check_inputs(model)


def _page(model: Any, trees: bool) -> None:
    try:
        # A private module; our dependency pins the minor version that it was checked with.
        from openvino._offline_transformations import paged_attention_transformation
    except ImportError as error:
        raise StageFailed(
            "This OpenVINO has no paged-attention transformation.",
            "Install the version that meshinfer asks for.",
        ) from error
    with openvino_errors("Paging the model's attention", "Choose another model."):
        # An OpenVINO that does not know the flag has no trees.
        can_bias = "allow_qq_bias" in (paged_attention_transformation.__doc__ or "")
        options = {"allow_qq_bias": True} if trees and can_bias else {}
        paged_attention_transformation(model, **options)
    if model.get_sinks() or any(
        operation.get_type_name() == "ScaledDotProductAttention" for operation in model.get_ops()
    ):
        raise StageFailed(
            "A part of the model's attention could not be paged.", "Choose another model."
        )


def _sees_by_position(model: Any) -> bool:
    """Whether all that a token knows of a place is in its rotated keys. A sliding window and ALiBi
    count slots of the cache instead, in which the branches of a tree lie behind each other."""
    return all(
        _is_constant(node.input(_SLIDING_WINDOW), 0) and _is_constant(node.input(_ALIBI))
        for node in _attentions(model)
    )


def _attentions(model: Any) -> list[Any]:
    return [node for node in model.get_ops() if node.get_type_name() == "PagedAttentionExtension"]


def _is_constant(port: Any, *values: int) -> bool:
    node = port.get_source_output().get_node()
    return node.get_type_name() == "Constant" and list(node.data.ravel()) == [*values]


def _remove_bias(model: Any) -> None:
    """As the pass leaves the operation without the flag: with empty constants."""
    import numpy as np
    from openvino import opset13 as ops

    for parameter in model.get_parameters():
        if not parameter.output(0).names & set(BIAS_INPUTS):
            continue
        empty = ops.constant(np.empty(0, parameter.get_element_type().to_dtype()))
        for consumer in parameter.output(0).get_target_inputs():
            consumer.replace_source_output(empty.output(0))
        model.remove_parameter(parameter)


def _prepare_hidden_input(model: Any, ports: Ports, precision: str) -> None:
    import openvino as ov
    from openvino import opset13 as ops

    port = model.input(HIDDEN_INPUT)
    parameter = port.get_node()
    if not ports.input_width:
        raise StageFailed("The stage does not say how wide its activations are.")
    # The pass puts an axis of one behind the tokens, but only reshapes this parameter when its
    # friendly name is right too.
    shape = [-1, ports.input_width] if ports.has_attention else [-1, 1, ports.input_width]
    parameter.set_partial_shape(ov.PartialShape(shape))
    if precision == "bf16":
        consumers = list(port.get_target_inputs())
        parameter.set_element_type(ov.Type.bf16)
        widened = ops.convert(parameter.output(0), "f32")
        for consumer in consumers:
            consumer.replace_source_output(widened.output(0))


def _round_lookups(model: Any) -> None:
    """Where embeddings are scaled, the plugin multiplies the table instead, but not where the head
    shares it: the numbers would then be rounded once in a stage and twice in the whole model."""
    from openvino import opset13 as ops

    for node in model.get_ordered_ops():
        if node.get_type_name() != "Gather" or not _reads_tokens(node):
            continue
        found = node.output(0)
        consumers = list(found.get_target_inputs())
        if found.get_element_type().get_type_name() == "f32":
            rounded = ops.convert(ops.convert(found, "bf16"), "f32")
            for consumer in consumers:
                consumer.replace_source_output(rounded.output(0))


def _reads_tokens(gather: Any) -> bool:
    """Whether the token ids themselves are what is looked up."""
    node = gather.input(1).get_source_output().get_node()
    while node.get_type_name() in _ROW_NUMBERS:
        node = node.input(0).get_source_output().get_node()
    return node.get_type_name() == "Parameter" and TOKEN_INPUT in node.output(0).names


def _round_output(model: Any) -> None:
    """Without it, the plugin keeps the last operation unrounded up to the f32 Result, and the next
    stage starts from other bits than the whole model would."""
    from openvino import opset13 as ops

    result = model.get_results()[0].input(0)
    result.replace_source_output(ops.convert(result.get_source_output(), "bf16").output(0))


def _gather_before_head(model: Any) -> None:
    import numpy as np
    from openvino import opset13 as ops

    head = _head(model)
    wanted = ops.parameter([-1], np.int64, name=WANTED_INPUT)
    wanted.output(0).set_names({WANTED_INPUT})
    rows = ops.gather(head.input(0).get_source_output(), wanted, ops.constant(np.int64(0)))
    head.input(0).replace_source_output(rows.output(0))
    model.add_parameters([wanted])


def _head(model: Any) -> Any:
    """The operation that makes logits."""
    node = model.get_results()[0].input(0).get_source_output().get_node()
    while node.get_type_name() in _BEHIND_HEAD:
        node = node.input(0).get_source_output().get_node()
    if node.get_type_name() != "MatMul":
        raise StageFailed(
            f"The model's logits come from a {node.get_type_name()}, not from a matrix product.",
            "Choose another model.",
        )
    return node


def _check_inputs(model: Any) -> None:
    for port in model.inputs:
        unknown = [
            name
            for name in port.names
            if name not in _KNOWN and not name.startswith(("key_cache.", "value_cache."))
        ]
        if unknown:
            raise StageFailed(
                f"The model wants an input '{max(unknown, key=len)}' that meshinfer does not feed.",
                "Choose a text-only decoder model.",
            )
        if POSITION_INPUT in port.names and len(port.get_partial_shape()) != 1:
            raise StageFailed(
                "The model wants positions in several dimensions.",
                "Choose a text-only decoder model.",
            )
