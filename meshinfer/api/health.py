"""GET /health, open to everybody and without details, and GET /meshinfer/v1/status."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from meshinfer.core.request import Door

StatusSource = Callable[[], Awaitable[dict[str, object]] | dict[str, object]]


def health_handler(door: Door) -> Handler:
    """200 when a model is served, else 503: what a load balancer asks."""

    async def health(request: web.Request) -> web.Response:
        if any(model.is_ready for model in door.models()):
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "loading"}, status=503)

    return health


def status_handler(source: StatusSource) -> Handler:
    async def status(request: web.Request) -> web.Response:
        document = source()
        if inspect.isawaitable(document):
            document = await document
        return web.json_response(document)

    return status
