"""meshinfer: one language model over the idle AI PCs of an office."""

import sys

__version__ = "0.1.0"

# `import openvino` reports to its maker over the internet, from a forked process that outlives a
# killed parent, whenever openvino_telemetry can be imported; without it OpenVINO uses its own stub.
# PCs of an office report to nobody.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
