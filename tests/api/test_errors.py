"""A29: every failure in OpenAI's envelope, with the right status."""

from __future__ import annotations

import pytest

from meshinfer.api.errors import problem_of
from meshinfer.core.request import ServedModel
from meshinfer.errors import (
    KINDS,
    ContextTooLong,
    InvalidRequest,
    MeshInferError,
    ModelNotFound,
    NotEnoughMemory,
    NotReady,
    Overloaded,
    PeerLost,
    ShardCorrupt,
    StageFailed,
    TimedOut,
    from_code,
)
from tests.api.scripted_door import ScriptedDoor, doing, saying
from tests.api.served import CHAT, CHAT_PATH, TEXT, TEXT_PATH, served


@pytest.mark.parametrize(
    ("error", "status", "kind", "param"),
    [
        (InvalidRequest("c.", param="stop"), 400, "invalid_request_error", "stop"),
        (ContextTooLong("c."), 400, "invalid_request_error", "messages"),
        (ModelNotFound("c."), 404, "invalid_request_error", "model"),
        (Overloaded("c."), 429, "rate_limit_error", None),
        (NotReady("c."), 503, "server_error", None),
        (NotEnoughMemory("c."), 503, "server_error", None),
        (PeerLost("c."), 503, "server_error", None),
        (TimedOut("c."), 504, "server_error", None),
        (StageFailed("c."), 500, "server_error", None),
        (ShardCorrupt("c."), 500, "server_error", None),
    ],
)
def test_each_error_has_its_status(
    error: MeshInferError, status: int, kind: str, param: str | None
) -> None:
    problem = problem_of(error)
    document = problem.document()
    assert problem.status == status
    assert document == {
        "error": {"message": "c.", "type": kind, "param": param, "code": error.code}
    }
    assert ("Retry-After" in problem.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("error", "said_s", "shown"),
    [
        (Overloaded("c."), None, "2"),
        (Overloaded("c."), 0.0, "1"),
        (Overloaded("c."), 11.2, "12"),
        (NotReady("c."), 60, "60"),
        (NotReady("c."), float("inf"), "5"),
        (NotReady("c."), float("nan"), "5"),
        (InvalidRequest("c."), 5.0, None),  # asking again never helps
    ],
)
def test_an_error_may_say_how_long_to_wait(
    error: MeshInferError, said_s: float | None, shown: str | None
) -> None:
    error.retry_after_s = said_s  # type: ignore[attr-defined, unused-ignore]
    assert problem_of(error).headers.get("Retry-After") == shown


@pytest.mark.parametrize("code", sorted(KINDS))
def test_no_error_is_without_a_status(code: str) -> None:
    problem = problem_of(from_code(code, "The cause.", "The remedy."))
    assert 400 <= problem.status < 600
    assert problem.message == "The cause. The remedy."
    assert problem.code == code


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Overloaded("Too many.", "Come back."), 429),
        (NotReady("Electing."), 503),
        (StageFailed("The engine gave up."), 500),
        (ContextTooLong("Too long."), 400),
    ],
)
async def test_an_error_before_the_answer_is_a_status(
    stream: bool, error: MeshInferError, status: int
) -> None:
    door = ScriptedDoor(doing(error))
    async with served(door) as api:
        reply = await api.post(CHAT_PATH, CHAT | {"stream": stream})
        assert reply.status == status
        assert reply.error["code"] == error.code
        assert ("Retry-After" in reply.headers) == (status in (429, 503))
    assert door.released == 1


async def test_the_field_is_named_as_the_endpoint_names_it() -> None:
    async with served(ScriptedDoor(doing(ContextTooLong("Too long.")))) as api:
        assert (await api.post(CHAT_PATH, CHAT)).error["param"] == "messages"
    async with served(ScriptedDoor(doing(ContextTooLong("Too long.")))) as api:
        assert (await api.post(TEXT_PATH, TEXT)).error["param"] == "prompt"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "bug", [ValueError("CANARY77"), TimeoutError("CANARY77"), ConnectionResetError("CANARY77")]
)
async def test_a_bug_behind_the_door_is_a_500_without_details(stream: bool, bug: Exception) -> None:
    async with served(ScriptedDoor(doing(bug))) as api:
        reply = await api.post(CHAT_PATH, CHAT | {"stream": stream})
        assert reply.status == 500
        assert reply.error["type"] == "server_error"
        assert b"CANARY77" not in reply.body
        assert b"ValueError" not in reply.body


async def test_a_bug_in_a_handler_is_a_500_without_details() -> None:
    class Broken(ScriptedDoor):
        def models(self) -> tuple[ServedModel, ...]:
            raise KeyError("CANARY77")

    async with served(Broken(saying("ok"))) as api:
        reply = await api.get("/v1/models")
        assert reply.status == 500
        assert reply.error["code"] == "internal_error"
        assert b"CANARY77" not in reply.body


async def test_a_door_that_ends_early_is_no_success() -> None:
    async with served(ScriptedDoor(doing())) as api:
        assert (await api.post(CHAT_PATH, CHAT)).error["code"] == "internal_error"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat", "/v1/chat/completions/", "/v2/models"])
async def test_an_unknown_path(path: str) -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.get(path)
        assert reply.status == 404
        assert reply.error["code"] == "unknown_path"
        assert path in reply.error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT_PATH, "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("PUT", "/v1/embeddings", "POST"),
    ],
)
async def test_a_wrong_method(method: str, path: str, allowed: str) -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.ask(method, path)
        assert reply.status == 405
        assert reply.headers["Allow"] == allowed
        assert reply.error["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses"])
async def test_what_is_not_built_says_so(path: str) -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.post(path, {})
        assert reply.status == 501
        assert reply.error["code"] == "not_supported"
        assert reply.headers["X-Should-Retry"] == "false"
