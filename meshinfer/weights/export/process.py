"""One run of the exporting child process, seen from its parent.

An Order enters, News come out as they are said. Called by `run`. However the block ends, so does
the child: at the end of its work, by an error here, or with this process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from meshinfer.errors import StageFailed
from meshinfer.weights.export.orders import News, Order

LOG = "export.log"
SCRATCH = "scratch"
MODULE = "meshinfer.weights.export.child"
_PATIENCE_S = 30.0  # for a child that has said its last word and is unloading its libraries


class ExportProcess:
    """`with ExportProcess(order) as process: for news in process.news(): ...`"""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._log = order.work / LOG

    def __enter__(self) -> ExportProcess:
        shutil.rmtree(self._order.work / SCRATCH, ignore_errors=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONWARNINGS": "ignore"},
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        shutil.rmtree(self._order.work / SCRATCH, ignore_errors=True)

    def news(self) -> Iterator[News]:
        """All that the child says until it ends. Raises what the child raised, and StageFailed
        when it ended before its time and had said nothing."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with suppress(BrokenPipeError):  # it died at once: what it wrote to the log tells
            stdin.write(self._order.to_line() + "\n")
            stdin.flush()
        has_spoken = False
        for line in stdout:
            news = News.from_line(line)
            if news.error is not None:
                raise news.error
            has_spoken = True
            yield news
        code = self._process.wait(_PATIENCE_S)
        if not has_spoken:
            raise StageFailed(
                f"The exporting process ended unexpectedly ({_ending(code)}): {self._last_words()}",
                f"{self._log} has all that it said. When memory ran out, close programs and try "
                "again.",
            )

    def _last_words(self) -> str:
        lines = self._log.read_text("utf-8", "replace").splitlines()
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no word")


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def remove_log(work: Path) -> None:
    (work / LOG).unlink(missing_ok=True)
