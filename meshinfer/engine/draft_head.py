"""A draft model as its host loads it: its head made smaller where that is possible."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshinfer.core.draft import DraftTask
from meshinfer.engine.head_trim import kept_tokens, trimmed
from meshinfer.engine.openvino_error import openvino_errors
from meshinfer.engine.ports import read_ports
from meshinfer.errors import StageFailed

log = logging.getLogger(__name__)


class DraftHead:
    """`columns` are the ids that the loaded head computes; None: all of them."""

    def __init__(self, task: DraftTask) -> None:
        self._task = task
        self.columns: NDArray[np.int64] | None = None

    @property
    def mark(self) -> str:
        """Tells what is compiled here from the whole model."""
        return "-draft" if self._task.special else ""

    def model(self, xml: Path) -> Any:
        """The model to load. Raises StageFailed: the file cannot be read."""
        import openvino as ov

        with openvino_errors("Reading the draft model's files", "Fetch it again."):
            whole = ov.Core().read_model(str(xml))
        if not self._task.special:
            return whole
        size = min(read_ports(whole).vocabulary_size, self._task.vocabulary_size)
        try:
            columns = kept_tokens(size, self._task.special)
            smaller = trimmed(whole, columns)
        except StageFailed as error:
            log.info("the draft's head stays whole: %s", error)
            return whole
        self.columns = columns
        return smaller
