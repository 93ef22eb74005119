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
    """Widths are numbers a token: 0 where token ids come in or logits leave, and like
    `vocabulary_size` where the stage does not show them."""

    first: bool
    last: bool
    input_width: int
    output_width: int
    vocabulary_size: int
    token_limit: int  # of a first stage: ids from here on have no place in its table
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
    rows = _table_rows(model) if first else 0
    return Ports(
        first=first,
        last=last,
        input_width=0 if first else _last_dimension(model.input(HIDDEN_INPUT)),
        output_width=0 if last else width,
        vocabulary_size=width if last else rows,
        token_limit=(rows or width) if first else 0,
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


def _table_rows(model: Any) -> int:
    """Rows of the table that token ids are looked up in, of the shortest where there are several;
    0 when none is found."""
    waiting = list(model.input(TOKEN_INPUT).get_target_inputs())
    found = []
    while waiting:
        consumer = waiting.pop().get_node()
        if consumer.get_type_name() == "Gather":
            table = consumer.input(0).get_source_output().get_partial_shape()
            if table.is_static and len(table) == 2:
                found.append(int(table[0].get_length()))
        elif consumer.get_type_name() == "Convert":
            waiting.extend(consumer.output(0).get_target_inputs())
    return min(found, default=0)
