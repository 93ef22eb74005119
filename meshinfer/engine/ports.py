"""What a stage's IR takes and gives, read from the model itself. Called while a stage loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshinfer.errors import StageFailed

TOKEN_INPUT = "input_ids"
HIDDEN_INPUT = "inputs_embeds"
LOGITS_OUTPUT = "logits"

_NOT_SUPPORTED = "Choose a text-only decoder model."


@dataclass(frozen=True, slots=True)
class Ports:
    """`hidden_size` and `vocabulary_size` are 0 where the stage does not show them."""

    first: bool
    last: bool
    hidden_size: int
    vocabulary_size: int
    has_attention: bool


def read_ports(model: Any) -> Ports:
    """Of a stage's IR before any transformation. Raises StageFailed for what we cannot feed."""
    inputs = {name for port in model.inputs for name in port.names}
    first = TOKEN_INPUT in inputs
    if not first and HIDDEN_INPUT not in inputs:
        raise StageFailed(
            f"The model has neither {TOKEN_INPUT} nor {HIDDEN_INPUT}.", _NOT_SUPPORTED
        )
    if len(model.outputs) != 1:
        raise StageFailed(
            f"The model has {len(model.outputs)} outputs where one is expected.", _NOT_SUPPORTED
        )
    output = model.outputs[0]
    last = LOGITS_OUTPUT in output.names
    width = _last_dimension(output)
    if first:
        hidden, vocabulary = _embedding_size(model.input(TOKEN_INPUT))
    else:
        hidden, vocabulary = _last_dimension(model.input(HIDDEN_INPUT)), 0
    return Ports(
        first=first,
        last=last,
        hidden_size=hidden or (0 if last else width),
        vocabulary_size=width if last else vocabulary,
        has_attention=_has_attention(model),
    )


def _has_attention(model: Any) -> bool:
    """Whether the stage has a cache. Raises StageFailed when it cannot be paged.

    Preconditions of the pass (openvino, sdpa_to_paged_attention.cpp); some exports have no
    ScaledDotProductAttention operation (model_server issue 4178).
    """
    attention = any(
        operation.get_type_name() == "ScaledDotProductAttention" for operation in model.get_ops()
    )
    states = bool(model.get_variables())
    if states and not attention:
        raise StageFailed(
            "The model keeps a state, but has no ScaledDotProductAttention operation to page.",
            "Export it again with a current optimum-intel.",
        )
    if attention and not states:
        raise StageFailed(
            "The model has attention without a state for its cache.",
            "Export it with the task text-generation-with-past.",
        )
    return attention


def _last_dimension(port: Any) -> int:
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic or not shape.rank.get_length():
        return 0
    dimension = list(shape)[-1]
    return int(dimension.get_length()) if dimension.is_static else 0


def _embedding_size(tokens: Any) -> tuple[int, int]:
    """(hidden size, vocabulary size) of the table that token ids are looked up in, or zeros."""
    waiting = list(tokens.get_target_inputs())
    while waiting:
        consumer = waiting.pop().get_node()
        if consumer.get_type_name() == "Gather":
            table = consumer.input(0).get_source_output().get_partial_shape()
            if table.is_static and len(table) == 2:
                rows, columns = (dimension.get_length() for dimension in table)
                return int(columns), int(rows)
        elif consumer.get_type_name() == "Convert":
            waiting.extend(consumer.output(0).get_target_inputs())
    return 0, 0
