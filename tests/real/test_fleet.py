"""Three agent processes on this machine: mDNS, TLS, OpenVINO, the real SmolLM2, every door."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.real.agents import MODEL, RealFleet, answer, real_fleet, run

pytestmark = [pytest.mark.processes, pytest.mark.openvino, pytest.mark.slow]

MEMORY = ("--memory", "390MB", "--deterministic")
"""Too little for the whole model (688 MB with its cache) and for half of it."""

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[RealFleet]:
    with real_fleet(tmp_path_factory.mktemp("fleet"), smollm2, "one", "two", "three") as made:
        made.start(*MEMORY)
        made.ready()
        yield made


def post(url: str, body: bytes) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_plan_has_three_stages_that_cover_the_model(fleet: RealFleet) -> None:
    status = fleet.agents[0].status()
    assert status["plan"]["kind"] == "pipeline"
    stages = status["plan"]["pipelines"][0]["stages"]
    assert len({stage["node"] for stage in stages}) == 3
    units = [stage["units"] for stage in stages]
    assert units[0][0] == 0
    assert units[2][1] == 62
    assert units[0][1] == units[1][0]
    assert units[1][1] == units[2][0]
    assert len(status["fleet"]["members"]) == 3


def test_the_status_of_every_pc_names_the_same_leader_and_plan(fleet: RealFleet) -> None:
    seen = [agent.status() for agent in fleet.agents]
    assert len({one["fleet"]["leader"] for one in seen}) == 1
    assert len({one["plan"]["id"] for one in seen}) == 1
    assert len({one["node"]["id"] for one in seen}) == 3


def test_followers_got_their_own_stage_only(fleet: RealFleet) -> None:
    """D07: bytes are those of the own layers."""
    status = fleet.agents[0].status()
    for agent in fleet.agents[1:]:
        stages = list((agent.folder / "store" / "stages").iterdir())
        assert len(stages) == 1
        size = sum(file.stat().st_size for file in stages[0].iterdir())
        node = agent.status()["node"]["id"]
        (planned,) = [
            one for one in status["plan"]["pipelines"][0]["stages"] if one["node"] == node
        ]
        assert size < planned["bytes"] * 1.15 + 3_000_000


def test_every_door_gives_the_same_answer(fleet: RealFleet) -> None:
    answers = {answer(agent, QUESTION) for agent in fleet.agents}
    assert len(answers) == 1
    assert "Paris" in answers.pop()


def test_the_official_client(fleet: RealFleet) -> None:
    client = openai.OpenAI(base_url=f"{fleet.agents[2].url}/v1", api_key="any", max_retries=0)
    assert [one.id for one in client.models.list()] == [MODEL]
    whole = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=24
    )
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.choices[0].finish_reason == "stop"
    pieces = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=24,
        stream=True,
    )
    text = "".join(one.choices[0].delta.content or "" for one in pieces)
    assert text == whole.choices[0].message.content


def test_sampling_repeats_with_its_seed(fleet: RealFleet) -> None:
    client = openai.OpenAI(base_url=f"{fleet.agents[1].url}/v1", api_key="any", max_retries=0)

    def draw(seed: int) -> str | None:
        done = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Name an animal."}],
            temperature=1.5,
            top_p=0.95,
            seed=seed,
            max_tokens=12,
        )
        return done.choices[0].message.content

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(2, 6)}) > 1


def test_an_unknown_model_is_404_and_lists_what_there_is(fleet: RealFleet) -> None:
    body = {"model": "no-such", "messages": [{"role": "user", "content": "x"}]}
    code, answer_ = post(f"{fleet.agents[1].url}/v1/chat/completions", json.dumps(body).encode())
    assert code == 404
    assert answer_["error"]["code"] == "model_not_found"
    assert MODEL in answer_["error"]["message"]


def test_a_prompt_longer_than_the_context_is_400_with_both_numbers(fleet: RealFleet) -> None:
    context = fleet.agents[0].status()["model"]["context_length"]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "word " * (context + 50)}]}
    code, answer_ = post(f"{fleet.agents[2].url}/v1/chat/completions", json.dumps(body).encode())
    assert code == 400
    assert answer_["error"]["code"] == "context_length_exceeded"
    assert str(context) in answer_["error"]["message"]


def test_malformed_json_is_400_in_the_envelope(fleet: RealFleet) -> None:
    code, answer_ = post(f"{fleet.agents[0].url}/v1/chat/completions", b'{"model": ')
    assert code == 400
    assert set(answer_["error"]) == {"message", "type", "param", "code"}


def test_garbage_on_the_ports_for_pcs_changes_nothing(fleet: RealFleet) -> None:
    """S02, S08: strangers are dropped; the fleet goes on."""
    agent = fleet.agents[0]
    for port in (agent.listen, agent.listen + 1):
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04cos\nsystem\n(S'x'\ntR.", bytes(999)):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
                stranger.sendall(garbage)
                stranger.settimeout(10)
                reply = b""
                with contextlib.suppress(OSError):
                    reply = stranger.recv(4096)
                assert b"meshinfer" not in reply
    assert "Paris" in answer(agent, QUESTION)
    assert agent.status()["refusals"]


def test_ask_and_plan_from_a_follower(fleet: RealFleet) -> None:
    folder = fleet.agents[1].folder
    asked = run("ask", QUESTION, folder=folder)
    assert asked.returncode == 0
    assert "Paris" in asked.stdout
    assert "tokens/s" in asked.stdout
    planned = run("plan", folder=folder)
    assert "pipeline" in planned.stdout
    chatted = run("chat", "--max-tokens", "20", folder=folder, text="Hello\n\n")
    assert chatted.returncode == 0
    assert "tokens/s" in chatted.stdout


def test_nothing_secret_or_private_is_in_logs_or_status(fleet: RealFleet) -> None:
    """S06."""
    answer(fleet.agents[1], "CANARY77 is a word", 4)
    for agent in fleet.agents:
        for text in (agent.log, json.dumps(agent.status())):
            assert "CANARY77" not in text
            assert fleet.code not in text


def test_a_second_agent_on_a_state_folder_is_refused(fleet: RealFleet) -> None:
    second = run("up", folder=fleet.agents[0].folder)
    assert second.returncode == 2
    assert "runs on" in second.stderr
    assert len(second.stderr.splitlines()) == 1


def test_a_conversation_goes_on_from_its_cache_at_any_door(fleet: RealFleet) -> None:
    """M11."""
    turns = [{"role": "user", "content": "Tell me about the moon. " * 12}]
    body = {"model": MODEL, "messages": turns, "temperature": 0, "max_tokens": 16}
    _, first = post(f"{fleet.agents[1].url}/v1/chat/completions", json.dumps(body).encode())
    turns.append(first["choices"][0]["message"])
    turns.append({"role": "user", "content": "And the sun?"})
    _, second = post(f"{fleet.agents[2].url}/v1/chat/completions", json.dumps(body).encode())
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"]
    assert cached < second["usage"]["prompt_tokens"]


def test_json_choices_and_log_probabilities_through_the_ring(fleet: RealFleet) -> None:
    client = openai.OpenAI(base_url=f"{fleet.agents[1].url}/v1", api_key="any", max_retries=0)
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    done = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=60,
        n=2,
        seed=5,
        logprobs=True,
        top_logprobs=3,
        frequency_penalty=0.5,
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema}},
    )
    assert len(done.choices) == 2
    for choice in done.choices:
        assert choice.finish_reason == "stop"
        answer_ = json.loads(choice.message.content or "")
        assert set(answer_) == {"city", "large"}
        assert choice.logprobs is not None
        told = choice.logprobs.content or []
        assert "".join(one.token for one in told) == choice.message.content
        assert all(len(one.top_logprobs) == 3 for one in told)
    assert done.usage is not None
    assert done.usage.prompt_tokens_details is not None


def test_metrics_and_status_tell_where_the_time_goes(fleet: RealFleet) -> None:
    answer(fleet.agents[2], QUESTION)
    for agent in fleet.agents:
        with urllib.request.urlopen(f"{agent.url}/metrics", timeout=10) as response:
            text = response.read().decode()
        assert 'meshinfer_members{state="alive"} 3' in text
        assert 'meshinfer_stage_seconds{stage="2",part="compute"}' in text
    stages = fleet.agents[0].status()["plan"]["pipelines"][0]["stages"]
    assert all(stage["configuration"].startswith("f32/0/f32") for stage in stages)
    assert all(stage["calibration"]["source"] == "deterministic" for stage in stages)
    assert all(stage["calibration"]["step_ms"]["1"] > 0 for stage in stages)


def test_alone_and_in_company_the_text_is_the_same(fleet: RealFleet) -> None:
    """C17, in deterministic mode: three PCs, eight users."""
    questions = [f"Say something about the number {index}." for index in range(8)]
    alone = [answer(fleet.agents[index % 3], one) for index, one in enumerate(questions)]
    with ThreadPoolExecutor(len(questions)) as crowd:
        asked = [
            crowd.submit(answer, fleet.agents[(index + 1) % 3], one)
            for index, one in enumerate(questions)
        ]
    assert [one.result() for one in asked] == alone
