"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from aiohttp import web

from meshinfer.api.form import Document
from meshinfer.api.schema import served_model
from meshinfer.core.request import Door, ServedModel


class ModelList:
    """What a request may name, in OpenAI's words plus the context length in tokens."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def list(self, request: web.Request) -> web.Response:
        models = [_document(one) for one in self._door.models()]
        return web.json_response({"object": "list", "data": models})

    async def show(self, request: web.Request) -> web.Response:
        """Raises ModelNotFound, NotReady."""
        served = self._door.models()
        wanted = served_model(request.match_info["id"], served)
        return web.json_response(_document(next(one for one in served if one.model == wanted)))


def _document(model: ServedModel) -> Document:
    return {
        "id": model.model,
        "object": "model",
        "created": model.created,
        "owned_by": "meshinfer",
        "context_length": model.context_length,
    }
