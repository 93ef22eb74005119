"""A transformers model of some layers of a checkpoint: their weights, and tiny stand-ins for the
embedding and the head.

The configuration and the tensors of a span enter, a torch model leaves. Called by the child.

transformers builds the whole model without memory (its parameters are on the "meta" device), so
that every layer is made with its own number: which attention slides, which layer has experts or no
rotary positions is decided there. Then all layers but the span's are dropped, what is left is
counted from 0, and the weights are loaded by transformers' own loader, which knows how each
architecture's tensors are named, joined and transposed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshinfer.errors import MeshInferError, ShardCorrupt, StageFailed
from meshinfer.weights.assembly import LayerSpan
from meshinfer.weights.export.tensors import Tensor

_INDEX_LISTS = ("mlp_only_layers", "full_attn_idxs", "cross_attention_layers")
"""Configuration entries that list layers by number; other lists of as many entries as there are
layers have one for each."""
_TORCH_NAMES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_ANOTHER = "Choose a GGUF or an OpenVINO IR of this model."


def load_config(folder: Path) -> Any:
    """transformers' configuration. Raises StageFailed for a model that transformers does not know
    (code that a checkpoint brings along is never run) or that is no causal language model."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, KeyError, OSError, TypeError, AttributeError) as error:
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
        raise StageFailed(f"transformers cannot read this configuration: {why}", _ANOTHER) from None
    model_class(config)
    return config


def model_class(config: Any) -> Any:
    """Raises StageFailed when transformers has no causal language model of this type."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise StageFailed(
            f"transformers has no causal language model of the type '{config.model_type}'.",
            _ANOTHER,
        ) from None


def build(
    config: Any, span: LayerSpan, tensors: Mapping[str, Tensor], dtype: str, stand_in: int
) -> Any:
    """A torch model of `span` in `dtype` ("F16", "BF16", "F32") whose vocabulary has `stand_in`
    random rows. Raises ShardCorrupt naming tensors that are missing or do not fit."""
    import torch

    own = copy.deepcopy(config)
    own.vocab_size = stand_in
    own.pad_token_id = None
    kind = _of_span(model_class(config), span)
    torch.manual_seed(0)  # the stand-ins: equal on every run
    state = {name: _Unread(tensor, dtype) for name, tensor in tensors.items()}
    with _loading_errors(config, state):
        model, report = kind.from_pretrained(
            None,
            config=own,
            state_dict=state,
            dtype=getattr(torch, _TORCH_NAMES[dtype]),
            output_loading_info=True,
            ignore_mismatched_sizes=False,
        )
    state.clear()
    model.__class__ = model_class(config)
    _check(model, report, span)
    return model.eval()


class _Unread:
    """A tensor that is read when the loader comes to it, as safetensors' own slices are. The
    loader's threads swallow errors, so the first one is kept."""

    def __init__(self, tensor: Tensor, dtype: str) -> None:
        self._tensor = tensor
        self._dtype = dtype
        self.error: MeshInferError | None = None

    def __getitem__(self, _: Any) -> Any:
        try:
            return _as_torch(self._tensor, self._dtype)
        except MeshInferError as error:
            self.error = error
            raise


@contextmanager
def _loading_errors(config: Any, state: Mapping[str, _Unread]) -> Iterator[None]:
    """What transformers raises for tensors of another shape becomes ShardCorrupt."""
    try:
        yield
    except (RuntimeError, ValueError, MeshInferError) as error:
        for tensor in state.values():
            if tensor.error is not None:
                raise tensor.error from None
        text = " ".join(str(error).split())[:300]
        raise ShardCorrupt(
            f"The tensors do not fit the configuration of this {config.model_type}: {text}",
            "Fetch the checkpoint again.",
        ) from error


def _of_span(kind: Any, span: LayerSpan) -> Any:
    """A class whose models are made whole and then keep the layers of `span` alone."""

    class OfSpan(kind):  # type: ignore[misc]
        def __init__(self, config: Any, *arguments: Any, **named: Any) -> None:
            super().__init__(config, *arguments, **named)
            keep_layers(self, span)

    # transformers and optimum judge a model by the name and module of its class.
    OfSpan.__name__, OfSpan.__qualname__ = kind.__name__, kind.__qualname__
    OfSpan.__module__ = kind.__module__
    return OfSpan


def keep_layers(model: Any, span: LayerSpan) -> None:
    """Drop all layers but those of `span`, which are then numbered from 0, and cut the
    configuration's lists alike. Raises StageFailed when the layers cannot be found."""
    import torch

    config = model.config
    total = config.num_hidden_layers
    homes = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, torch.nn.ModuleList) and len(child) == total and _are_layers(child)
    ]
    if len(homes) != 1:
        raise StageFailed(
            f"The layers of a {config.model_type} cannot be told apart from its other parts.",
            _ANOTHER,
        )
    parent, name = homes[0]
    kept = list(getattr(parent, name))[span.first : span.end]
    for layer in kept:
        for module in layer.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                module.layer_idx -= span.first
    setattr(parent, name, torch.nn.ModuleList(kept))
    cut_config(config, span, total)


def _are_layers(modules: Any) -> bool:
    """Decoder layers hold an attention that knows its number; experts do not."""
    return any(hasattr(module, "layer_idx") for module in modules[0].modules())


def cut_config(config: Any, span: LayerSpan, total: int) -> None:
    """Entries that have a value for each layer, or that list layers, are cut to `span`."""
    for name, value in list(vars(config).items()):
        if not isinstance(value, list | tuple):
            continue
        if name in _INDEX_LISTS:
            inside = [one - span.first for one in value if span.first <= one < span.end]
            setattr(config, name, type(value)(inside))
        elif len(value) == total and ("layer" in name or "pattern" in name):
            setattr(config, name, value[span.first : span.end])
    config.num_hidden_layers = span.end - span.first


def _as_torch(tensor: Tensor, dtype: str) -> Any:
    """The tensor in its own type; floating ones of another than `dtype` are converted. Raises
    StageFailed where values do not fit F16."""
    import torch

    own = _TORCH_NAMES.get(tensor.dtype)
    if own is None:
        raise StageFailed(
            f"{tensor.name[:80]} holds {tensor.dtype} numbers, which the exporter does not read.",
            "Choose a checkpoint in F32, F16 or BF16.",
        )
    data = torch.frombuffer(tensor.read(), dtype=getattr(torch, own)).reshape(tensor.shape)
    wanted = getattr(torch, _TORCH_NAMES[dtype])
    if data.dtype == wanted:
        return data
    converted = data.to(wanted)
    if wanted is torch.float16 and not torch.isfinite(converted).all():
        raise StageFailed(
            f"{tensor.name[:80]} holds values beyond the range of F16.", "Choose bf16 or int4."
        )
    return converted


def _check(model: Any, report: Mapping[str, Any], span: LayerSpan) -> None:
    """Everything but the stand-ins was loaded, and everything that was read was used."""
    stand_ins = {model.get_input_embeddings(), model.get_output_embeddings()}
    apart = {
        f"{name}.{part}"
        for name, module in model.named_modules()
        if module in stand_ins
        for part, _ in module.named_parameters(recurse=False)
    }
    missing = sorted(set(report["missing_keys"]) - apart)
    wrong = sorted(str(one) for one in report.get("mismatched_keys", ()))
    unused = sorted(set(report["unexpected_keys"]))
    for names, what in (
        (missing, "lacks"),
        (wrong, "has in another shape"),
        (unused, "has beside"),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ShardCorrupt(
                f"The checkpoint {what} what its configuration asks for, in the layers {span} "
                f"(counted from 0 there): {', '.join(names[:3])}{more}.",
                "Fetch the checkpoint again.",
            )
