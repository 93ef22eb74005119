"""Who may ask: the key, the Host header, the Origin of a web page. Runs before a body is read."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

from aiohttp import web
from aiohttp.typedefs import Handler

from meshinfer.api.errors import Problem
from meshinfer.api.options import ApiOptions
from meshinfer.core.fleet import Address
from meshinfer.errors import UsageError

_OPEN_PATH = "/health"
_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_PREFLIGHT_AGE_S = 600


def is_loopback(host: str) -> bool:
    """Whether only programs of this PC can reach `host`. Other names than localhost: no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(address: Address, options: ApiOptions) -> None:
    """Raises UsageError when `options` would let strangers in at `address`."""
    if options.key is not None and not options.key.strip():
        raise UsageError("The API key is empty.", "Set a key, or none at all.")
    if options.key is not None:
        return
    if not is_loopback(address.host):
        raise UsageError(
            f"Without a key the API would be open to everybody who reaches {address}.",
            "Set an API key, or listen on 127.0.0.1.",
        )
    if "*" in options.allowed_origins:
        raise UsageError(
            "Without a key every web page could use the API.",
            "Set an API key, or name the allowed origins.",
        )


class Guard:
    """Middleware and response hook for one bound address."""

    def __init__(self, address: Address, options: ApiOptions) -> None:
        self._key = None if options.key is None else _digest(options.key)
        self._origins = frozenset(one.rstrip("/").lower() for one in options.allowed_origins)
        self._hosts = _LOCAL_NAMES | {address.host.lower()}

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets `request` through to `handler`, or answers it."""
        if self._is_preflight(request):
            return _preflight(request)
        if request.path == _OPEN_PATH:
            return await handler(request)
        if self._key is None and not self._is_known_host(request):
            return _HOST_REFUSED.response()
        if self._key is None and self._is_foreign_write(request):
            return _ORIGIN_REFUSED.response()
        if self._key is not None and not self._has_key(request, self._key):
            return _KEY_REFUSED.response()
        return await handler(request)

    async def mark(self, request: web.Request, response: web.StreamResponse) -> None:
        """Headers that every response carries, errors and streams too (on_response_prepare)."""
        response.headers["Server"] = "meshinfer"
        response.headers["X-Content-Type-Options"] = "nosniff"
        if not self._origins:
            return
        response.headers["Vary"] = "Origin"
        if self._is_allowed(request.headers.get("Origin")):
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["Access-Control-Expose-Headers"] = "Retry-After"

    def _is_known_host(self, request: web.Request) -> bool:
        """A page that rebinds its name to 127.0.0.1 still sends its own name as Host."""
        return _host_name(request.headers.get("Host", "")) in self._hosts

    def _is_allowed(self, origin: str | None) -> bool:
        if origin is None:
            return False
        return "*" in self._origins or origin.lower() in self._origins

    def _is_preflight(self, request: web.Request) -> bool:
        return (
            request.method == "OPTIONS"
            and "Access-Control-Request-Method" in request.headers
            and self._is_allowed(request.headers.get("Origin"))
        )

    def _is_foreign_write(self, request: web.Request) -> bool:
        """Browsers send text/plain across origins unasked, but never without its Origin."""
        origin = request.headers.get("Origin")
        if origin is None or request.method in _HARMLESS or self._is_allowed(origin):
            return False
        return origin.lower() != f"http://{request.headers.get('Host', '').lower()}"

    def _has_key(self, request: web.Request, key: bytes) -> bool:
        """Compares digests in constant time, so that neither content nor length shows."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return hmac.compare_digest(_digest(given.strip()), key) and scheme.lower() == "bearer"


def _digest(key: str) -> bytes:
    # surrogateescape: how aiohttp keeps header bytes that are not UTF-8
    return hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()


def _host_name(host: str) -> str:
    """`Host` without port, brackets and the dot of a rooted name."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _preflight(request: web.Request) -> web.Response:
    headers = {
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", ""),
        "Access-Control-Max-Age": str(_PREFLIGHT_AGE_S),
    }
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return web.Response(status=204, headers=headers)


_HOST_REFUSED = Problem(
    403,
    "This API has no key and answers only to its own names. "
    "Use http://127.0.0.1, or set an API key.",
    "host_not_allowed",
)
_ORIGIN_REFUSED = Problem(
    403,
    "This API has no key and takes no requests from other web pages. Allow the page's origin.",
    "origin_not_allowed",
)
_KEY_REFUSED = Problem(
    401,
    "The API key is missing or wrong. Send it as: Authorization: Bearer KEY",
    "invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"},
)
