from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meshinfer.weights.lock import FileLock, exclusive


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    one, two = FileLock(tmp_path / "a.lock"), FileLock(tmp_path / "a.lock")
    assert one.try_acquire()
    assert not two.try_acquire()
    one.release()
    one.release()
    assert two.try_acquire()
    two.release()


def test_waiting_ends_when_the_holder_lets_go(tmp_path: Path) -> None:
    holder = FileLock(tmp_path / "a.lock")
    assert holder.try_acquire()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        holder.release()

    with exclusive(tmp_path / "a.lock", sleep):
        assert not FileLock(tmp_path / "a.lock").try_acquire()
    assert len(waits) == 1


def test_shared_holders_keep_out_only_who_wants_it_alone(tmp_path: Path) -> None:
    one, two, alone = (FileLock(tmp_path / "a.lock") for _ in range(3))
    assert one.try_acquire(shared=True)
    assert two.try_acquire(shared=True)
    assert not alone.try_acquire()
    one.release()
    assert not alone.try_acquire()
    two.release()
    assert alone.try_acquire()
    assert not one.try_acquire(shared=True)
    alone.release()


@pytest.mark.slow
def test_a_holder_that_dies_lets_go(tmp_path: Path) -> None:
    script = (
        "import os\n"
        "from pathlib import Path\n"
        "from meshinfer.weights.lock import FileLock\n"
        f"assert FileLock(Path({str(tmp_path / 'a.lock')!r})).try_acquire()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode != 0
    lock = FileLock(tmp_path / "a.lock")
    assert lock.try_acquire()
    lock.release()
