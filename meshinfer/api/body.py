"""The body of a request: bytes within the limit become one JSON object."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from meshinfer.errors import InvalidRequest

_BODY_PATIENCE_S = 60.0  # a client that sends slower than this holds a connection for nothing


async def read_object(request: web.Request) -> dict[str, object]:
    """The JSON object that `request` carries.

    Raises HTTPRequestEntityTooLarge before anything is read when the length is announced, and at
    the limit when it is not; HTTPRequestTimeout; InvalidRequest.
    """
    announced = request.content_length or 0
    if announced > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, announced)
    try:
        async with asyncio.timeout(_BODY_PATIENCE_S):
            raw = await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    except web.RequestPayloadError:
        raise InvalidRequest("The body did not arrive in one piece.", "Send it again.") from None
    return parse_object(raw)


def parse_object(raw: bytes) -> dict[str, object]:
    """Strict JSON: no NaN, no nesting beyond what the parser takes. Raises InvalidRequest."""
    # No error is chained: a JSONDecodeError carries the whole text, prompts included.
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"The body is not valid JSON ({place}).", "Mend it.") from None
    except (ValueError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.", "Mend it.") from None
    if not isinstance(body, dict):
        raise InvalidRequest("The body is not a JSON object.", "Send an object.")
    return body


def _refuse_constant(_: str) -> float:
    raise ValueError("NaN and Infinity are not JSON")
