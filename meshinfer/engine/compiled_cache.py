"""Compiled stages, kept so that a device's compiler runs once: a folder for each stage, device and
version, deleted and made anew when it does not load.

Called while a stage loads. GPU and NPU plugins compile for seconds to minutes and load a blob in a
fraction. A paged graph on the CPU is never kept: its head sizes lie where serialisation drops them,
so the plugin would write a blob at every start and load none (measured on OpenVINO 2026.4.1).
OpenVINO itself prunes nothing, and a full disk makes its load fail (openvino issue 20190), so both
are seen to here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger(__name__)

MOST_KEPT = 8
"""Compiled stages of one PC: two plans on three devices and some room to go back."""

MARGIN_BYTES = 1 << 30
"""Free disk below which nothing is kept; a blob is about as large as the stage."""

_VERSIONS = {
    "GPU": ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", "GPU_UARCH_VERSION", "DRIVER_VERSION"),
    "NPU": (
        "FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", "NPU_DRIVER_VERSION", "NPU_COMPILER_VERSION",
    ),
    "CPU": ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE"),
}  # fmt: skip
"""What a blob depends on beside the stage, by kind of device; a plugin without one of them is asked
for the others (intel_gpu and intel_npu properties.hpp)."""


class CompilingCore(Protocol):
    """The part of openvino.Core that is needed."""

    def get_property(self, device_name: str, property: str) -> Any: ...

    def compile_model(self, model: Any, device_name: str, config: Mapping[str, Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class CompiledCache:
    """`root` belongs to one agent; `stage` is the digest of the stage's manifest."""

    root: Path
    stage: str


def compile_model(
    core: CompilingCore,
    model: Any,
    device: str,
    properties: Mapping[str, Any],
    cache: CompiledCache,
    stage_bytes: int,
) -> Any:
    """The compiled model, loaded from the cache where that is possible. Raises what the plugin
    raises when it cannot compile the model at all; trouble with the cache only costs time."""
    folder = _folder(core, device, properties, cache, stage_bytes)
    if folder is None:
        return core.compile_model(model, device, dict(properties))
    with contextlib.suppress(OSError):
        os.utime(folder)
    cached = {**properties, "CACHE_DIR": str(folder)}
    attempts = 2 if any(folder.iterdir()) else 1
    for _ in range(attempts):
        try:
            return core.compile_model(model, device, cached)
        except Exception as error:  # a damaged blob, another driver's, a full disk: not told apart
            log.warning("compiling for %s with a cache failed, once more: %s", device, error)
            shutil.rmtree(folder, ignore_errors=True)
    return core.compile_model(model, device, dict(properties))


def is_loaded(compiled: Any) -> bool:
    """Whether the model came from the cache."""
    try:
        return bool(compiled.get_property("LOADED_FROM_CACHE"))
    except Exception:  # plugins that do not know the property
        return False


def worth_keeping(device: str, is_paged: bool) -> bool:
    """Whether a blob of this device can be loaded again."""
    return not (device.startswith("CPU") and is_paged)


def _folder(
    core: CompilingCore,
    device: str,
    properties: Mapping[str, Any],
    cache: CompiledCache,
    stage_bytes: int,
) -> Path | None:
    """Where the blobs of just this lie; None when nothing can be kept."""
    name = f"{cache.stage[:16]}-{device.replace('.', '_')}"
    folder = cache.root / f"{name}-{_fingerprint(core, device, properties)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _prune(cache.root, f"{name}-", folder)
        if not any(folder.iterdir()):
            free = shutil.disk_usage(folder).free
            if free < stage_bytes + MARGIN_BYTES:
                folder.rmdir()
                return None
    except OSError:  # a full or read-only disk: it is only a cache
        return None
    return folder


def _fingerprint(core: CompilingCore, device: str, properties: Mapping[str, Any]) -> str:
    import openvino as ov

    kind = device.partition(".")[0]
    facts = {"openvino": str(ov.get_version()), "properties": str(sorted(properties.items()))}
    for name in _VERSIONS.get(kind, ()):
        with contextlib.suppress(Exception):  # this plugin has no such property
            facts[name] = str(core.get_property(device, name))
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _prune(root: Path, own_prefix: str, keep: Path) -> None:
    """Blobs of this stage and device for other versions, and the least recently used beyond the
    limit, go."""
    folders = sorted(
        (path for path in root.iterdir() if path != keep),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    stale = [path for path in folders if path.name.startswith(own_prefix)]
    others = [path for path in folders if path not in stale]
    for path in (*stale, *others[MOST_KEPT - 1 :]):
        shutil.rmtree(path, ignore_errors=True)
