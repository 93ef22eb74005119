"""The newest epoch on disk, so that a restarted PC never goes back to an older one.

Written whole and synced before it replaces the old file: after a power cut one of the two is there.
"""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId
from meshinfer.errors import DiskFull
from meshinfer.mesh.atomic_file import replace_file

log = logging.getLogger(__name__)


class EpochFile:
    """Implements EpochStore in one small file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._saved: Epoch | None = None

    def load(self) -> Epoch:
        with self._lock:
            return self._load()

    def save(self, epoch: Epoch) -> None:
        """Raises DiskFull when the file cannot be written."""
        with self._lock:
            if epoch <= self._load():
                return
            document = json.dumps({"counter": epoch.counter, "leader": epoch.leader})
            try:
                replace_file(self._path, document)
            except OSError as error:
                raise DiskFull(
                    f"The file {self._path} cannot be written: {error}.",
                    "Free disk space; until then this PC neither leads nor follows anybody new.",
                ) from error
            self._saved = epoch

    def _load(self) -> Epoch:
        if self._saved is None:
            self._saved = self._read()
        return self._saved

    def _read(self) -> Epoch:
        """A damaged file counts as none: the fleet tells its epoch when this PC meets it."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            return Epoch(int(document["counter"]), NodeId(str(document["leader"])))
        except FileNotFoundError:
            return NO_EPOCH
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be read (%s): starting without it", self._path, error)
            return NO_EPOCH
