"""Endpoints of OpenAI's that are not built: a plain 501 instead of a 404 that looks like a typo."""

from __future__ import annotations

from aiohttp import web

from meshinfer.api.errors import Problem

PATHS = ("/v1/embeddings", "/v1/responses")


async def absent(request: web.Request) -> web.Response:
    return Problem(
        501,
        f"{request.path} is not supported. Use /v1/chat/completions.",
        "not_supported",
        headers={"X-Should-Retry": "false"},  # OpenAI's clients repeat every 5xx otherwise
    ).response()
