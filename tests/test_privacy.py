"""What must not happen behind a person's back."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import meshinfer, sys
import openvino.tools.ovc.telemetry_utils as used
print(used.tm.__name__)
"""


def test_openvino_reports_to_nobody() -> None:
    """Its telemetry is replaced by its own stub as soon as meshinfer is imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "openvino.tools.ovc.telemetry_stub"
