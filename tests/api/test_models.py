"""GET /v1/models: A19."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshinfer.core.ids import ModelId
from tests.api.scripted_door import MODEL, ScriptedDoor, saying
from tests.api.served import CHAT, CHAT_PATH, served

DOCUMENT = {
    "id": MODEL.model,
    "object": "model",
    "created": MODEL.created,
    "owned_by": "meshinfer",
    "context_length": MODEL.context_length,
}


async def test_the_list_holds_exactly_what_a_request_may_name() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.get("/v1/models")
        assert reply.document == {"object": "list", "data": [DOCUMENT]}
        listed = reply.document["data"][0]["id"]
        answer = (await api.post(CHAT_PATH, CHAT | {"model": listed})).document
        assert answer["model"] == listed


async def test_one_model() -> None:
    slashed = replace(MODEL, model=ModelId("OpenVINO/Qwen3-8B"))
    async with served(ScriptedDoor(saying("ok"), models=(MODEL, slashed))) as api:
        assert (await api.get("/v1/models/smollm2-135m")).document == DOCUMENT
        reply = await api.get("/v1/models/OpenVINO/Qwen3-8B")
        assert reply.document == DOCUMENT | {"id": "OpenVINO/Qwen3-8B"}


@pytest.mark.parametrize("name", ["other", "SMOLLM2-135M", "..%2Fx"])
async def test_another_model(name: str) -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.get(f"/v1/models/{name}")
        assert reply.status == 404
        assert reply.error["code"] == "model_not_found"
        assert "'smollm2-135m'" in reply.error["message"]


async def test_before_anything_is_served() -> None:
    async with served(ScriptedDoor(saying("ok"), models=())) as api:
        assert (await api.get("/v1/models")).document == {"object": "list", "data": []}
        for reply in (await api.get("/v1/models/any"), await api.post(CHAT_PATH, CHAT)):
            assert reply.status == 503
            assert reply.error["code"] == "not_ready"
            assert reply.headers["Retry-After"]
