"""SIGTERM at any moment of an agent's life: it ends by itself, soon, and leaves nothing behind."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from tests.real.agents import MODEL, real_fleet

pytestmark = [pytest.mark.processes, pytest.mark.openvino, pytest.mark.slow]


@pytest.mark.parametrize("seconds", [0.3, 1.5, 2.5, 4.0])
def test_an_agent_can_be_stopped_while_it_starts(
    tmp_path: Path, smollm2: Path, seconds: float
) -> None:
    """While it elects, asks devices, cuts, loads: wherever it is after so many seconds."""
    with real_fleet(tmp_path, smollm2, "one") as fleet:
        (agent,) = fleet.agents
        agent.start("--model", MODEL, "--no-mdns")
        fleet.until(lambda: "other PCs at port" in agent.log, "it is up")
        moment = time.monotonic() + seconds
        fleet.until(lambda: time.monotonic() >= moment, "the moment")
        below = agent.children()
        asked = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - asked < 12
        _, alive = psutil.wait_procs(below, timeout=3)
        assert not alive
