"""One stage of a model, cut from the whole.

The whole model's IR and a range of units enter, the stage's ov.Model leaves. Called by the split
(which saves it) and by `verify`. The IR is read memory-mapped: weights that the stage does not
need are never touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshinfer.core.model import UnitRange
from meshinfer.errors import StageFailed
from meshinfer.weights.cache_reorder import add_reorder
from meshinfer.weights.crossing import Crossing, Output, segment
from meshinfer.weights.cut_points import Anatomy, anatomy
from meshinfer.weights.graph import READ_VALUE, SHAPE_OF
from meshinfer.weights.key_values import ASSIGN
from meshinfer.weights.packing import pack, unpack
from meshinfer.weights.rerooting import ShapeRoots
from meshinfer.weights.unique_names import make_names_unique

HIDDEN_INPUT = "inputs_embeds"
HIDDEN_OUTPUT = "hidden_states"
LOGITS_OUTPUT = "logits"

_ANOTHER_CUT = "Choose another cut, or another model."
_WRITTEN_BY_SAVE = frozenset({"OpenVINO Runtime", "Runtime_version", "version"})


def cut(model_path: Path, units: UnitRange) -> Any:
    """The ov.Model that computes `units`, exactly as the whole would.

    Inputs: `input_ids` (i64 [batch, length]) for the first stage, else `inputs_embeds` (f32
    [batch, length, width]); of `attention_mask`, `position_ids` and `beam_idx` those that the part
    reads. Output: `logits` for the last stage, else `hidden_states` (f32 [batch, length, width]).
    The width is that of the hidden state, and of whatever crosses beside it (weights.crossing).
    Only states that the part reads are kept; mask and rotary parts are computed anew. A head that
    shares the embedding carries the matrix, an attention that shares a cache carries its own.

    A stage without attention (the embedding, the head, one feed-forward unit) has no state: the
    paged-attention transformation refuses it, and the engine runs it without.

    Raises StageFailed: the model cannot be cut there (the tensor is named), it has no such units,
    or it cannot be read.
    """
    model = read_model(model_path)
    whole = anatomy(model)
    if units.end > len(whole.units):
        raise StageFailed(f"The model has {len(whole.units)} units; {units} goes beyond them.")
    return _Stage(model, whole, units).build()


def read_model(path: Path) -> Any:
    """An ov.Model whose weights stay in the file. Raises StageFailed."""
    import openvino as ov

    with openvino_errors(f"Reading {path.name}"):
        core = ov.Core()
        core.set_property({"ENABLE_MMAP": True})
        return core.read_model(path)


@contextmanager
def openvino_errors(doing: str) -> Iterator[None]:
    """OpenVINO raises plain RuntimeErrors: the last line of one says what is wrong."""
    try:
        yield
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = lines[-1][:300] if lines else type(error).__name__
        raise StageFailed(f"{doing} failed: {why}") from error


class _Stage:
    """One cut of one freshly read model; building it changes that model's graph."""

    def __init__(self, model: Any, whole: Anatomy, units: UnitRange) -> None:
        self._model = model
        self._whole = whole
        self._graph = whole.graph
        self._units = units
        self._entry = whole.ends[units.first - 1] if units.first else None
        self._end = whole.ends[units.end - 1] if units.end < len(whole.units) else None
        self._before = frozenset[int]() if self._entry is None else self._entry.places
        ends = [whole.logits] if self._end is None else self._end.places
        own = segment(self._graph, whole.caches, self._before, ends)
        self._ends = tuple(ends)
        self._states = self._in_order_of_use(own)
        self._sinks = tuple(sorted(place for place in own if self._kind(place) == ASSIGN))
        self._absent = self._absent_places()

    def build(self) -> Any:
        import openvino as ov

        needed = self._graph.behind([*self._ends, *self._sinks], self._stops)
        self._refuse_absent(needed)
        parameters = [
            self._graph.nodes[place]
            for place in sorted(needed)
            if self._kind(place) == "Parameter" and place not in self._before
        ]
        with openvino_errors(f"Building the stage {self._units}"):
            carried: dict[Output, Any] = {}
            if self._entry is not None:
                parameters.insert(0, self._open_entry(self._entry, needed, carried))
            result = self._result(carried)
            sinks = [self._graph.nodes[place] for place in self._sinks]
            stage = ov.Model([result], sinks, parameters, f"stage_{self._units}")
            copy_runtime_info(self._model, stage)
            stage.validate_nodes_and_infer_types()
            add_reorder(stage)
            make_names_unique(stage)
        return stage

    def _in_order_of_use(self, own: frozenset[int]) -> tuple[int, ...]:
        """The states among `own`. A mask may only look at the cache of the first layer that reads
        it: later ones are made with it."""
        readers = self._whole.caches.readers
        states = [place for place in own if self._kind(place) == READ_VALUE]
        return tuple(
            sorted(
                states,
                key=lambda state: (
                    min((one for one in readers.get(state, ()) if one in own), default=0),
                    state,
                ),
            )
        )

    def _kind(self, place: int) -> str:
        return self._graph.kinds[place]

    def _absent_places(self) -> frozenset[int]:
        """What the stage cannot compute: the token ids, states of others, and all that is made
        from their values."""
        absent: set[int] = set()
        for place, kind in enumerate(self._graph.kinds):
            if place in self._before or kind == SHAPE_OF or place in self._states:
                continue
            is_source = place == self._whole.tokens and self._entry is not None
            is_foreign = kind == READ_VALUE
            if is_source or is_foreign or not absent.isdisjoint(self._graph.sources[place]):
                absent.add(place)
        return frozenset(absent)

    def _stops(self, place: int) -> bool:
        return place in self._before or self._is_lost_shape(place)

    def _is_lost_shape(self, place: int) -> bool:
        return self._kind(place) == SHAPE_OF and self._graph.sources[place][0] in self._absent

    def _refuse_absent(self, needed: set[int]) -> None:
        """Only shapes of what was cut off can be had from elsewhere; values cannot."""
        for place in sorted(needed & self._absent):
            raise StageFailed(
                f"The model cannot be cut before unit {self._units.first}: the values of "
                f"'{self._graph.name(place)}' are needed behind the cut.",
                _ANOTHER_CUT,
            )

    def _open_entry(self, entry: Crossing, needed: set[int], carried: dict[Output, Any]) -> Any:
        """The stage's own input, in the place of what the stage before computes. `carried` gets
        what takes the place of each tensor."""
        import numpy as np
        from openvino import opset13 as ops

        parameter = ops.parameter([-1, -1, entry.width], np.float32, name=HIDDEN_INPUT)
        # The paged-attention pass looks at the friendly name, callers at the tensor's.
        parameter.set_friendly_name(HIDDEN_INPUT)
        parameter.output(0).set_names({HIDDEN_INPUT})
        roots = ShapeRoots(self._graph, self._states, self._absent, parameter.output(0))
        lost = [place for place in sorted(needed) if self._is_lost_shape(place)]
        replacements = [(self._graph.nodes[place].output(0), roots.root(place)) for place in lost]
        outputs = unpack(entry.tensors, parameter.output(0))
        for tensor, output in zip(entry.tensors, outputs, strict=True):
            replacements.append((self._graph.nodes[tensor.place].output(tensor.port), output))
            carried[tensor.output] = output
        for old, new in replacements:
            for consumer in list(old.get_target_inputs()):
                consumer.replace_source_output(new)
        return parameter

    def _result(self, carried: dict[Output, Any]) -> Any:
        from openvino import opset13 as ops

        if self._end is None:
            result, name = self._graph.nodes[self._whole.logits], LOGITS_OUTPUT
        else:
            outputs = []
            for tensor in self._end.tensors:
                own = self._graph.nodes[tensor.place].output(tensor.port)
                outputs.append(carried.get(tensor.output, own))
            result, name = ops.result(pack(self._end.tensors, outputs)), HIDDEN_OUTPUT
            result.set_friendly_name(name)
        result.output(0).set_names({name})
        return result


def copy_runtime_info(source: Any, target: Any) -> None:
    """Options such as ACTIVATIONS_SCALE_FACTOR keep f16 devices from overflowing; an ov.Model that
    is made anew has none."""
    for path, value in _leaves(source.get_rt_info(), []):
        target.set_rt_info(value, path)


def _leaves(info: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    for key, value in info.items():
        if not path and key in _WRITTEN_BY_SAVE:
            continue
        inner = value.value if hasattr(value, "value") else value
        if hasattr(inner, "items"):
            yield from _leaves(inner, [*path, key])
        else:
            yield [*path, key], inner
