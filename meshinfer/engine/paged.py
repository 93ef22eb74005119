"""A stage on OpenVINO with a paged cache: what an agent's stage host loads and runs.

A stage's IR and options go in; steps and activations become activations or logits. Everything runs
on the thread that loaded it. A stage without attention (embedding or head by itself) has no cache
and runs as the plain graph it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.step import Step
from meshinfer.engine.blocks import BlockTable, Placement
from meshinfer.engine.cache_tensors import CacheTensors, allocate, memory_of
from meshinfer.engine.compiled_cache import compile_model, worth_keeping
from meshinfer.engine.configuration import StageOptions, check_device, check_precision, properties
from meshinfer.engine.lockstep import WIDTH, padded, slices
from meshinfer.engine.openvino_error import openvino_errors
from meshinfer.engine.ports import HIDDEN_INPUT, TOKEN_INPUT, Ports, read_ports
from meshinfer.engine.stage import StageShape
from meshinfer.engine.step_arrays import PagedArrays, paged_arrays, token_count, wanted_tokens
from meshinfer.engine.transform import (
    BIAS_INPUTS,
    PAGED_INPUTS,
    POSITION_INPUT,
    WANTED_INPUT,
    transform,
)
from meshinfer.errors import StageFailed

__all__ = ["PagedStage", "StageOptions"]

_SMALL_BYTES = 32 << 10
"""Up to here a copy is cheaper than a new tensor."""

_PLAIN_BLOCK = 32
"""Tokens a block of a stage without a cache: it only counts, in the unit the CPU would use."""


class PagedStage:
    """Implements engine.stage.Stage. Made by `load`."""

    def __init__(
        self, compiled: Any, ports: Ports, options: StageOptions, cache: CacheTensors | None
    ) -> None:
        block_size = cache.block_size if cache else _PLAIN_BLOCK
        block_count = cache.block_count if cache else -(-options.cache_tokens // block_size)
        self._in_lockstep = options.deterministic
        if cache and options.deterministic:
            block_count -= 1  # the last one belongs to nobody: engine.lockstep
        self._inputs = {name: port for port in compiled.inputs for name in port.names}
        self._takes_bias = self._inputs.keys() >= set(BIAS_INPUTS)
        self._shape = StageShape(
            first=ports.first,
            last=ports.last,
            precision=options.precision,
            input_width=ports.input_width,
            output_width=ports.output_width,
            vocabulary_size=ports.vocabulary_size,
            cache_tokens=block_count * block_size,
            block_size=block_size,
            trees=cache is None or (self._takes_bias and cache.moves_slots),
        )
        self._token_limit = ports.token_limit
        self._table = BlockTable(block_count, block_size)
        self._cache = cache
        self._request = compiled.create_infer_request()
        # The request does not keep the arrays alive whose memory it reads.
        self._held: dict[str, Any] = {}
        self._bias_begins: NDArray[np.int32] | None = None  # that the request has
        for name, tensor in (cache.tensors if cache else {}).items():
            self._request.set_tensor(self._inputs[name], tensor)

    @classmethod
    def load(cls, source: Path | Any, options: StageOptions) -> PagedStage:
        """`source` is the path of a stage's IR or an `openvino.Model`, which stays as it was.

        Blocks for as long as compiling takes. Raises StageFailed with the reason.
        """
        import openvino as ov

        core = ov.Core()
        check_device(core, options)
        if isinstance(source, Path):
            with openvino_errors("Reading the stage's files", "Fetch the stage again."):
                model = core.read_model(str(source))
        else:
            model = source.clone()
        ports = read_ports(model)
        transform(model, ports, options.precision, options.has_trees)
        with openvino_errors(f"Compiling for {options.device}", "Use another device."):
            compiled = _compiled(core, model, options, ports.has_attention)
        check_precision(compiled, options)
        cache = None
        if ports.has_attention:
            memory = memory_of(core, options.device)
            spare = 1 if options.deterministic else 0
            cache = allocate(compiled, memory, options.cache_tokens, spare)
        return cls(compiled, ports, options, cache)

    @property
    def shape(self) -> StageShape:
        return self._shape

    def forward(self, step: Step, hidden: NDArray[Any] | None) -> NDArray[Any]:
        """See engine.stage.Stage. A refused step only releases; after a failed computation the
        sequences of its rows hold what they held before their new tokens, without what they were
        to keep: nobody knows whether it was moved."""
        if self._request is None:
            raise StageFailed("The stage is closed.", "Load it again.")
        self._table = self._table.released(step.released)
        source = self._source(step, hidden)
        self._check_trees(step)
        placement = self._table.placed(step.rows)
        if not len(source) or not (self._cache or self._gives_rows(step)):
            self._table = placement.table
            return self._nothing()
        try:
            result = self._compute(step, source, placement)
        except StageFailed:
            for row in step.rows:
                kept_from = row.position - len(row.kept)
                self._table = self._table.rewound(row.sequence, kept_from)
            raise
        self._table = placement.table
        return result

    def keep(self, lengths: Mapping[int, int]) -> None:
        self._table = self._table.kept(lengths)

    def cached(self, sequence: int) -> int:
        return self._table.chain(sequence).length

    def refuse_trees(self) -> None:
        self._shape = replace(self._shape, trees=False)

    def close(self) -> None:
        self._request = None
        self._cache = None
        self._inputs.clear()
        self._held.clear()

    def _gives_rows(self, step: Step) -> bool:
        return not self._shape.last or step.logit_count > 0

    def _check_trees(self, step: Step) -> None:
        if not self._shape.trees and any(row.parents for row in step.rows):
            raise StageFailed("A token tree came to a stage that has none.", "Send chains.")
        is_fixed = self._cache is not None and not self._cache.moves_slots
        if is_fixed and any(row.kept for row in step.rows):
            raise StageFailed("The cache of this device cannot be compacted.", "Send chains.")

    def _source(self, step: Step, hidden: NDArray[Any] | None) -> NDArray[Any]:
        """The step's ids [tokens] or activations [tokens, input_width], checked."""
        tokens = token_count(step)
        if self._shape.first:
            ids = np.array(step.tokens, np.int64)
            # The Gather of an embedding table reads outside of it for an id that is too high.
            limit = self._token_limit
            if tokens and (ids.min() < 0 or (limit and ids.max() >= limit)):
                raise StageFailed("A token id is not in the model's vocabulary.")
            return ids
        dtype = np.float32 if self._shape.precision == "f32" else np.uint16
        expected = (tokens, self._shape.input_width)
        if hidden is None or hidden.shape != expected or hidden.dtype != dtype:
            got = "none" if hidden is None else f"{hidden.dtype} {hidden.shape}"
            raise StageFailed(f"Activations {expected} in {np.dtype(dtype)} were due, got {got}.")
        return np.ascontiguousarray(hidden)

    def _nothing(self) -> NDArray[Any]:
        if self._shape.last:
            return np.empty((0, self._shape.vocabulary_size), np.float32)
        dtype = np.float32 if self._shape.precision == "f32" else np.uint16
        return np.empty((0, self._shape.output_width), dtype)

    def _compute(self, step: Step, source: NDArray[Any], placement: Placement) -> NDArray[Any]:
        with openvino_errors("The computation", "Read the log of that PC and restart the stage."):
            if self._cache is not None:
                self._cache.copy_blocks(placement.copies)
                self._cache.move_slots(placement.moves)
            if self._in_lockstep:
                return self._compute_in_lockstep(step, source, placement)
            arrays = paged_arrays(step, placement.chains) if self._cache is not None else None
            return self._infer(source, arrays, wanted_tokens(step))

    def _compute_in_lockstep(
        self, step: Step, source: NDArray[Any], placement: Placement
    ) -> NDArray[Any]:
        """The same, `lockstep.WIDTH` tokens at a time."""
        wanted, results = wanted_tokens(step), []
        everything = np.arange(WIDTH, dtype=np.int64)
        for part in slices(step, placement.chains, self._shape.block_size, self._table.block_count):
            mine = wanted[(wanted >= part.first) & (wanted < part.first + part.count)]
            asked = everything if len(mine) else mine
            arrays = part.arrays if self._cache is not None else None
            output = self._infer(padded(source, part), arrays, asked)
            kept = mine - part.first if self._shape.last else everything[: part.count]
            results.append(output[kept])
        return np.concatenate(results)

    def _infer(
        self, source: NDArray[Any], arrays: PagedArrays | None, wanted: NDArray[np.int64]
    ) -> NDArray[Any]:
        """One inference: a row for each of `wanted` at the last stage, else for each token. Valid
        until the next."""
        if arrays is not None:
            self._set_paged(arrays)
        self._set_source(source)
        if self._shape.last:
            # The head must have one row at least, also where nobody wants any.
            self._set(WANTED_INPUT, wanted if len(wanted) else np.zeros(1, np.int64))
        self._request.infer()
        result: NDArray[Any] = self._request.get_output_tensor(0).data
        if self._shape.last:
            return result.reshape(len(result), -1)[: len(wanted)]
        if self._shape.precision == "bf16":
            result = result.view(np.uint16)
        return result.reshape(len(source), self._shape.output_width)

    def _set_source(self, source: NDArray[Any]) -> None:
        plain = self._cache is None
        if self._shape.first:
            self._set(TOKEN_INPUT, source[:, None] if plain else source)
        else:
            self._set(HIDDEN_INPUT, source[:, None, :] if plain else source)

    def _set_paged(self, arrays: PagedArrays) -> None:
        for name in (POSITION_INPUT, *PAGED_INPUTS):
            if name in self._inputs:
                self._set(name, getattr(arrays, name))
        # Steps of n rows without trees share an array: there is nothing to hand over then.
        if self._takes_bias and arrays.qq_bias_begins is not self._bias_begins:
            for name in BIAS_INPUTS:
                self._set(name, getattr(arrays, name))
            self._bias_begins = arrays.qq_bias_begins

    def _set(self, name: str, array: NDArray[Any]) -> None:
        """Hand an array over, a large one without a copy. A small one of the shape that was there
        is written to its place: making a tensor and handing it over takes 10 us, and a decoding
        step has seven of them. The form with a type also takes read-only memory, as a
        frame's payload is, and bf16, which NumPy does not know."""
        held = self._held.get(name)
        if held is not None and held[0].shape == array.shape and array.nbytes <= _SMALL_BYTES:
            held[0][...] = array
            return
        if array.nbytes <= _SMALL_BYTES:
            array = array.copy()  # ours to write to: what comes may be a frame's memory
        import openvino as ov

        port = self._inputs[name]
        tensor = ov.Tensor(array, ov.Shape(array.shape), port.get_element_type())
        self._held[name] = (array, tensor)
        self._request.set_tensor(port, tensor)


def _compiled(core: Any, model: Any, options: StageOptions, is_paged: bool) -> Any:
    """The compiled model, from the cache where the device can load one."""
    chosen = properties(options)
    if options.compiled is None or not worth_keeping(options.device, is_paged):
        return core.compile_model(model, options.device, chosen)
    weights = sum(
        constant.get_byte_size()
        for constant in model.get_ops()
        if constant.get_type_name() == "Constant"
    )
    return compile_model(core, model, options.device, chosen, options.compiled, weights)
