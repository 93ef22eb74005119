"""GET /health and /meshinfer/v1/status."""

from __future__ import annotations

from dataclasses import replace

import aiohttp
import pytest

from meshinfer.api.server import ApiServer
from meshinfer.errors import NotReady
from tests.api.scripted_door import MODEL, ScriptedDoor, saying
from tests.api.served import LOOPBACK, OPTIONS, STATUS, served


async def test_health_follows_the_models() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        reply = await api.get("/health")
        assert (reply.status, reply.document) == (200, {"status": "ok"})
    for models in ((), (replace(MODEL, is_ready=False),)):
        async with served(ScriptedDoor(saying("ok"), models=models)) as api:
            reply = await api.get("/health")
            assert (reply.status, reply.document) == (503, {"status": "loading"})


async def test_status_shows_the_document_of_this_pc() -> None:
    async with served(ScriptedDoor(saying("ok"))) as api:
        assert (await api.get("/meshinfer/v1/status")).document == STATUS


@pytest.mark.parametrize("is_ready", [True, False])
async def test_status_may_have_to_be_asked_for(is_ready: bool) -> None:
    async def later() -> dict[str, object]:
        if not is_ready:
            raise NotReady("Still starting.")
        return STATUS

    server = ApiServer(ScriptedDoor(saying("ok")), later, OPTIONS)
    address = await server.start(LOOPBACK)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{address}/meshinfer/v1/status") as response,
        ):
            assert response.status == (200 if is_ready else 503)
            document = await response.json()
            assert document == STATUS if is_ready else document["error"]["code"] == "not_ready"
    finally:
        await server.close()
