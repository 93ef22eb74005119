"""The rows of one suite: printed as they come, written as JSON at the end."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    unit: str
    baseline: float | None
    baseline_name: str | None
    ratio: float


class Report:
    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.rows: list[Row] = []

    def compare(
        self, name: str, value: float, unit: str, baseline: float, baseline_name: str
    ) -> None:
        """More is better; the ratio is ours over the baseline."""
        self._add(Row(name, value, unit, baseline, baseline_name, value / baseline))

    def absolute(self, name: str, value: float, unit: str) -> None:
        """The bar is on the figure itself."""
        self._add(Row(name, value, unit, None, None, value))

    def write(self, file: Path) -> None:
        document = {
            "suite": self.suite,
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "cores": os.cpu_count(),
                "system": platform.system(),
                "python": platform.python_version(),
                "openvino": version("openvino"),
            },
            "rows": [asdict(row) for row in self.rows],
        }
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        against = (
            f"  {row.baseline_name} {row.baseline:.4g}  ratio {row.ratio:.3f}"
            if row.baseline is not None
            else ""
        )
        print(f"{row.name:32} {row.value:10.4g} {row.unit:10}{against}", flush=True)
