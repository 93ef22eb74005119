"""A real disk of a few megabytes for one script: a tmpfs in a mount namespace of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_MOUNT = 'mount -t tmpfs -o size="$1" small "$2" && shift 2 && exec "$@"'


def run_on_small_disk(folder: Path, size: str, script: str) -> str:
    """What the Python `script` prints; `folder` is the disk while it runs. Skips the test where
    nothing may be mounted."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs mount namespaces")
    folder.mkdir(exist_ok=True)
    command = [unshare, "-rm", "sh", "-c", _MOUNT, "sh", size, str(folder)]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing may be mounted here")
    done = subprocess.run(
        [*command, sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
