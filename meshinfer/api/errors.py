"""Every failure as HTTP: OpenAI's envelope `{"error": {message, type, param, code}}`.

The middleware is the outermost frame of every request; what handlers raise ends here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from meshinfer.api.crash import crash_report
from meshinfer.errors import (
    InvalidRequest,
    MeshInferError,
    ModelNotFound,
    NotEnoughMemory,
    NotReady,
    Overloaded,
    PeerLost,
    TimedOut,
)

log = logging.getLogger(__name__)

_STATUS: dict[type[MeshInferError], int] = {
    InvalidRequest: 400,
    ModelNotFound: 404,
    Overloaded: 429,
    NotReady: 503,
    PeerLost: 503,
    TimedOut: 504,
    MeshInferError: 500,  # everything else: nothing that a client could mend
}
_RETRY_AFTER_S: dict[type[MeshInferError], int] = {
    Overloaded: 2,
    PeerLost: 2,  # a ring is re-formed within seconds
    NotReady: 5,
    NotEnoughMemory: 30,  # it takes a person
}
_TYPE = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_HTTP_CODE = {
    404: "unknown_path",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One failure in the words of the envelope. `message` is safe to show."""

    status: int
    message: str
    code: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPE.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> web.Response:
        return web.json_response(self.document(), status=self.status, headers=self.headers)


def problem_of(error: MeshInferError) -> Problem:
    """The status, code and headers that `error` deserves, by its nearest known class."""
    kinds = type(error).__mro__
    status = next(_STATUS[kind] for kind in kinds if kind in _STATUS)
    wait_s = _wait_s(error)
    headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
    param = "model" if isinstance(error, ModelNotFound) else None
    if isinstance(error, InvalidRequest):
        param = error.param
    if status >= 500:
        log.warning("a request failed: %s: %s", error.code, error)
    return Problem(status, str(error), error.code, param, headers)


def _wait_s(error: MeshInferError) -> int | None:
    """Whole seconds after which asking again may help: what the error says, or its kind."""
    said: float | None = getattr(error, "retry_after_s", None)
    kind_says = next(
        (_RETRY_AFTER_S[kind] for kind in type(error).__mro__ if kind in _RETRY_AFTER_S), None
    )
    if said is None or kind_says is None or not math.isfinite(said):
        return kind_says
    return max(1, math.ceil(said))


@web.middleware
async def in_envelope(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns what `handler` raises into a response; a bug becomes a 500 without details."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _http_problem(request, error).response()
    except MeshInferError as error:
        return problem_of(error).response()
    except ConnectionError:
        raise  # the client is gone: aiohttp drops the connection
    except Exception as error:
        # outermost frame of the request
        log.error("a request crashed: %s", crash_report(error))
        if request.writer.output_size > 0:
            # A second status cannot follow a first: cut the connection, so that nobody takes
            # the half answer for a whole one.
            raise ConnectionResetError("the response had begun") from None
        return _INTERNAL.response()


_INTERNAL = Problem(
    500, "An internal error. The log of this PC has the details.", MeshInferError.code
)


def _http_problem(request: web.Request, error: web.HTTPException) -> Problem:
    """aiohttp's own refusals. Raises `error` again when it is no failure (a redirect)."""
    if error.status < 400:
        raise error
    message = f"{error.reason}."
    headers = {}
    match error:
        case web.HTTPNotFound():
            message = f"There is no {request.path} here."
        case web.HTTPMethodNotAllowed():
            headers["Allow"] = ", ".join(sorted(error.allowed_methods))
            message = f"{request.path} does not take {request.method}. Use {headers['Allow']}."
        case web.HTTPRequestEntityTooLarge():
            message = f"The body is larger than {request.client_max_size} bytes."
    code = _HTTP_CODE.get(error.status, InvalidRequest.code)
    return Problem(error.status, message, code, headers=headers)
