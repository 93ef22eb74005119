"""What breaks in an office, with real processes: dying PCs, altered shards, too little memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from meshinfer.errors import MeshInferError, NotEnoughMemory
from tests.real.agents import MODEL, RealAgent, RealFleet, answer, real_fleet, run

pytestmark = [pytest.mark.processes, pytest.mark.openvino, pytest.mark.slow]

QUESTION = "What is the capital of France?"


@pytest.fixture
def pair(tmp_path: Path, smollm2: Path) -> Iterator[RealFleet]:
    """Two PCs that need each other, found by --peer alone (J02)."""
    with real_fleet(tmp_path, smollm2, "one", "two") as made:
        first, second = made.agents
        memory = ("--memory", "390MB", "--no-mdns")
        first.start("--model", MODEL, *memory)
        second.start("--peer", f"127.0.0.1:{first.listen}", *memory)
        made.ready()
        yield made


def started_story(agent: RealAgent) -> Iterator[dict[str, object]]:
    """A long streamed answer, a few tokens in."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Tell a long story."}]}
    chunks = agent.api.chat({**body, "temperature": 0, "max_tokens": 2000})
    for _ in range(5):
        next(chunks)
    return chunks


def consume(chunks: Iterator[dict[str, object]]) -> float:
    """Seconds from the last chunk to the error that ends the stream."""
    started = time.monotonic()
    try:
        for _ in chunks:
            started = time.monotonic()
    except MeshInferError:
        return time.monotonic() - started
    pytest.fail("the stream ended as if nothing had happened")


def test_a_killed_worker_ends_requests_within_ten_seconds_and_the_rest_serve_again(
    pair: RealFleet,
) -> None:
    """N01. One PC alone holds the model with a shorter context, so the fleet comes back."""
    first, second = pair.agents
    orphans = second.children()
    assert orphans
    chunks = started_story(first)
    second.kill()
    assert consume(chunks) < 10
    gone, alive = psutil.wait_procs(orphans, timeout=10)
    assert not alive, f"orphans of a killed agent: {alive}, gone {gone}"
    pair.ready([first])
    assert "Paris" in answer(first, QUESTION)


def test_a_killed_leader_ends_the_followers_requests_and_the_worker_serves_again(
    pair: RealFleet,
) -> None:
    """N02: the worker runs on, its stage waits for a plan, and it is a member again when the leader
    is back; one stage is left of it all."""
    first, second = pair.agents
    chunks = started_story(second)
    first.kill()
    assert consume(chunks) < 10
    first.start("--model", MODEL, "--memory", "390MB", "--no-mdns")
    pair.ready()
    assert len(second.status()["fleet"]["members"]) == 2
    assert "Paris" in answer(second, QUESTION)
    assert [len(one.stage_hosts()) for one in (first, second)] == [1, 1]


def test_an_altered_shard_is_never_loaded_and_is_fetched_again(pair: RealFleet) -> None:
    first, second = pair.agents
    (stage,) = (second.folder / "store" / "stages").iterdir()
    weights = stage / "openvino_model.bin"
    assert pair.close() == [0, 0]
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size // 2)
        file.write(b"\xff" * 64)
    memory = ("--memory", "390MB", "--no-mdns")
    first.start("--model", MODEL, *memory)
    second.start("--peer", f"127.0.0.1:{first.listen}", *memory)
    pair.ready()
    assert "Paris" in answer(second, QUESTION)
    assert b"\xff" * 64 not in weights.read_bytes()


def test_a_stage_host_that_dies_is_replaced(pair: RealFleet) -> None:
    first, second = pair.agents
    plan = first.status()["plan"]["id"]
    (host,) = second.stage_hosts()
    host.kill()
    pair.until(lambda: (first.status().get("plan") or {}).get("id") not in (None, plan), "a plan")
    pair.ready()
    assert "Paris" in answer(second, QUESTION)


def test_a_model_larger_than_the_fleet_is_503_with_both_figures(
    tmp_path: Path, smollm2: Path
) -> None:
    """P03: no load starts; status lists the rooms."""
    with real_fleet(tmp_path, smollm2, "small") as fleet:
        (agent,) = fleet.agents
        agent.start("--model", MODEL, "--memory", "200MB")
        fleet.until(lambda: bool(agent.status().get("no_plan")), "no plan")
        with pytest.raises(NotEnoughMemory, match=r"needed.*available"):
            answer(agent, QUESTION)
        assert agent.status()["no_plan"]["rooms"]
        assert not agent.stage_hosts()
        shown = run("status", folder=agent.folder)
        assert "No plan" in shown.stdout


def test_a_port_that_is_taken_is_named(tmp_path: Path, smollm2: Path) -> None:
    with real_fleet(tmp_path, smollm2, "one") as fleet:
        (agent,) = fleet.agents
        agent.start("--memory", "200MB")
        fleet.until(lambda: bool(agent.status()), "up")
        other = tmp_path / "other"
        assert run("init", "--quiet", folder=other).returncode == 0
        refused = run("up", "--listen", f"0.0.0.0:{agent.listen}", folder=other)
        assert refused.returncode == 2
        assert str(agent.listen) in refused.stderr
        assert "--listen" in refused.stderr


def test_a_wrong_join_code_is_refused_and_said_on_both_sides(tmp_path: Path, smollm2: Path) -> None:
    with real_fleet(tmp_path, smollm2, "one") as fleet:
        (agent,) = fleet.agents
        agent.start("--memory", "200MB")
        fleet.until(lambda: bool(agent.status()), "up")
        strange = run("init", "--json", folder=tmp_path / "strange").stdout
        code = strange.partition('"code": "')[2].partition('"')[0]
        peer = f"127.0.0.1:{agent.listen}"
        joined = run("join", "--peer", peer, folder=tmp_path / "new", text=code)
        assert joined.returncode == 1
        assert "another fleet" in joined.stderr
        assert len(joined.stderr.splitlines()) == 1
        assert not (tmp_path / "new" / "identity").exists()
        fleet.until(lambda: bool(agent.status()["refusals"]), "the refusal is shown")
        other = "a" if code[-1] != "a" else "b"
        typo = run("join", folder=tmp_path / "new", text=code[:-1] + other)
        assert typo.returncode == 2
        assert "typo" in typo.stderr
        right = run("join", "--peer", peer, folder=tmp_path / "new", text=fleet.code)
        assert right.returncode == 0
        assert "answered" in right.stdout


def test_ctrl_c_takes_everything_down(pair: RealFleet) -> None:
    processes = [*pair.agents[0].children(), *pair.agents[1].children()]
    assert processes
    with contextlib.suppress(MeshInferError):
        answer(pair.agents[0], QUESTION, 3)
    assert pair.close() == [0, 0]
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive
