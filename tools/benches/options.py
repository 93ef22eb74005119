"""What a person asks of a bench beside its suite."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Only `models` and `quick` concern every suite."""

    models: Path  # folder of prepared models
    quick: bool = False  # the small model, within three minutes
    repeat: int = 3  # medians of so many measurements
    parts: tuple[str, ...] = ()  # of a suite that has parts; empty: all
    configuration: str = "f32/128/f32"  # of our stages, and of the baseline that has the same
    hops_ms: tuple[int, ...] = (0, 10, 50, 100)  # of the suites about speculation
    soak_minutes: float = 0.0
    llama_bin: Path | None = None  # folder with llama.cpp's rpc-server and llama-server
    llama_model: Path | None = None  # a GGUF of the target

    def wants(self, part: str) -> bool:
        return not self.parts or part in self.parts

    @property
    def model(self) -> str:
        """By its name in the catalogue."""
        return "smollm2-135m" if self.quick else "qwen2.5-coder-1.5b"
