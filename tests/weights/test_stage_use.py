from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshinfer.core.ids import Digest
from meshinfer.weights.stage_use import StageUse

STAGE = Digest("a" * 64)
OTHER = Digest("b" * 64)


def test_a_stage_in_use_is_nobody_elses(tmp_path: Path) -> None:
    one, two = StageUse(tmp_path / "use"), StageUse(tmp_path / "use")
    with one.hold(STAGE), two.hold(STAGE), one.alone(STAGE) as free, two.alone(OTHER) as other:
        assert (free, other) == (False, True)
    with two.alone(STAGE) as free:
        assert free


def test_who_wants_to_use_a_stage_waits_while_it_is_removed(tmp_path: Path) -> None:
    use = StageUse(tmp_path / "use")
    removal = use.alone(STAGE)
    assert removal.__enter__()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        removal.__exit__(None, None, None)

    with use.hold(STAGE, sleep), use.alone(STAGE) as free:
        assert not free
    assert len(waits) == 1


@pytest.mark.slow
def test_a_process_that_dies_uses_nothing_any_more(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from meshinfer.weights.stage_use import StageUse\n"
        f"with StageUse(Path({str(tmp_path / 'use')!r})).hold({STAGE!r}):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    use = StageUse(tmp_path / "use")
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with use.alone(STAGE) as free:
            assert not free
        holder.kill()
    with use.alone(STAGE) as free:
        assert free


def test_the_last_use_is_told_at_most_once_a_minute(tmp_path: Path) -> None:
    now = [1000.0]
    use = StageUse(tmp_path / "use", lambda: now[0])
    stamp = tmp_path / "use" / f"{STAGE}.lock"
    for later, is_told in ((0.0, True), (59.0, False), (1.0, True)):
        now[0] += later
        if stamp.exists():
            os.utime(stamp, (5, 5))
        use.touch(STAGE)
        assert (use.last(STAGE, tmp_path) != 5) is is_told


def test_a_stage_that_nobody_used_has_the_time_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    os.utime(tmp_path / "stage", (7, 7))
    use = StageUse(tmp_path / "use")
    assert use.last(STAGE, tmp_path / "stage") == 7
    assert use.last(STAGE, tmp_path / "nowhere") == 0


def test_where_nothing_can_be_written_everybody_may_use_and_nobody_remove(tmp_path: Path) -> None:
    """A file in the folder's place stands for media that cannot be written."""
    (tmp_path / "use").touch()
    use = StageUse(tmp_path / "use")
    use.touch(STAGE)
    with use.hold(STAGE), use.alone(STAGE) as free:
        assert not free
