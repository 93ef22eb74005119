"""S06: neither prompts nor keys reach the log, whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging

import pytest

from meshinfer.api.options import ApiOptions
from meshinfer.core.request import Delta, Started
from meshinfer.errors import PeerLost, StageFailed
from tests.api.scripted_door import MODEL, ScriptedDoor, Step, doing, saying
from tests.api.served import CHAT_PATH, TEXT_PATH, read_until, served

KEY = "SECRETKEY123"
CANARY = "CANARY77"
LOCKED = ApiOptions(key=KEY, drain_s=0.05)
HEADERS = {"Authorization": f"Bearer {KEY}"}
CHAT = {"model": MODEL.model, "messages": [{"role": "user", "content": CANARY}]}


def check(log: pytest.LogCaptureFixture) -> None:
    """The formatted log, traces included, as it would stand in a file."""
    assert KEY not in log.text
    assert CANARY not in log.text


def crash() -> Exception:
    """A bug whose words quote the prompt, raised while another one is handled."""
    try:
        raise KeyError(CANARY)
    except KeyError as first:
        error = ValueError(f"cannot read {CANARY!r}")
        error.__cause__ = first
        return error


@pytest.mark.parametrize(
    "script",
    [
        [Started(3), Delta(CANARY, (1,))],
        [crash()],
        [Started(3), Delta(CANARY, (1,)), crash()],
        [Started(3), ExceptionGroup(CANARY, [crash(), crash()])],
        [StageFailed("The engine gave up.")],
        [Started(3), PeerLost("A PC is gone.")],
    ],
    ids=["early-end", "crash", "late-crash", "group", "failed", "lost"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_answers_and_crashes(
    script: list[Step], stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    async with served(ScriptedDoor(doing(*script)), LOCKED) as api:
        await api.post(CHAT_PATH, CHAT | {"stream": stream}, headers=HEADERS)
    check(caplog)
    assert caplog.records  # each of these leaves a line


async def test_the_place_of_a_crash_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with served(ScriptedDoor(doing(crash())), LOCKED) as api:
        await api.post(CHAT_PATH, CHAT, headers=HEADERS)
    assert "ValueError" in caplog.text
    assert "KeyError" in caplog.text
    assert "scripted_door.py" in caplog.text
    check(caplog)


async def test_refusals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(ScriptedDoor(saying("ok")), LOCKED) as api:
        for path, body in (
            (CHAT_PATH, {"model": CANARY}),
            (CHAT_PATH, CHAT | {"stop": [CANARY, None]}),
            (CHAT_PATH, CHAT | {"user": CANARY * 100}),
            (CHAT_PATH, CHAT | {"logit_bias": {CANARY: 1}}),
            (CHAT_PATH, CHAT | {"guided_json": CANARY}),
            (CHAT_PATH, CHAT | {"guided_choice": [CANARY, None]}),
            (CHAT_PATH, CHAT | {CANARY: CANARY, "n": CANARY}),
            (TEXT_PATH, {"model": MODEL.model, "prompt": [CANARY, CANARY]}),
            (f"/{CANARY}", {}),
        ):
            assert (await api.post(path, body, headers=HEADERS)).status in (400, 404)
        await api.ask("POST", CHAT_PATH, data=f"{{{CANARY}", headers=HEADERS)
        await api.post(CHAT_PATH, CHAT, headers={"Authorization": f"Bearer {KEY}x"})
    check(caplog)


@pytest.mark.parametrize(
    "raw",
    [
        # A Content-Length that is too short: the rest of the prompt is read as the next request.
        f'POST {CHAT_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"{CANARY}\r\n\r\n',
        f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: {KEY * 1000}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\n{KEY} {KEY}\r\n\r\n",
        f"{CANARY}\r\n\r\n",
    ],
    ids=["rest-of-body", "long-header", "bad-header", "no-http"],
)
async def test_bytes_that_are_no_http(raw: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        served(ScriptedDoor(saying("ok")), LOCKED) as api,
        api.raw(raw.encode()) as (reader, _),
    ):
        await read_until(reader, b"400 Bad Request")
    check(caplog)
    assert caplog.records
