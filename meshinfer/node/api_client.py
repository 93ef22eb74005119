"""What the commands need of a running agent, over its HTTP API. Standard library only: `status`
must answer in under half a second, imports included."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from meshinfer.core.fleet import Address
from meshinfer.errors import MeshInferError, NotReady, PeerLost, from_code


class ApiClient:
    """Talks to the agent at `address`; `key` is sent when there is one."""

    def __init__(self, address: Address, key: str | None, timeout_s: float = 600.0) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout_s = timeout_s

    def status(self) -> dict[str, Any]:
        """The status document. Raises NotReady when nobody answers."""
        with self._request("GET", "/meshinfer/v1/status", None) as response:
            document: dict[str, Any] = json.load(response)
            return document

    def models(self) -> list[str]:
        with self._request("GET", "/v1/models", None) as response:
            return [entry["id"] for entry in json.load(response)["data"]]

    def chat(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Chunks of a streamed chat completion. Raises the error that the fleet reports."""
        with self._request("POST", "/v1/chat/completions", {**body, "stream": True}) as response:
            for text in _data_lines(response):
                if text == "[DONE]":
                    return
                chunk = json.loads(text)
                if "error" in chunk:
                    raise _reported(chunk)
                yield chunk
        raise PeerLost("The answer broke off: the agent ended.", "Ask again.")

    @contextmanager
    def _request(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(
            self._address.host, self._address.port, timeout=self._timeout_s
        )
        with closing(connection):
            headers = dict(self._headers)
            data = None
            if body is not None:
                data = json.dumps(body).encode()
                headers["Content-Type"] = "application/json"
            try:
                connection.request(method, path, data, headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise NotReady(
                    f"The agent at {self._address} does not answer ({error}).",
                    "Start it with: meshinfer up",
                ) from error
            if response.status >= 400:
                raise _reported(_json_or_empty(response))
            yield response


def _data_lines(response: http.client.HTTPResponse) -> Iterator[str]:
    """What stands behind `data: `, until the stream ends in whatever way."""
    with suppress(OSError, http.client.HTTPException):
        for line in response:
            text = line.decode("utf-8").strip()
            if text.startswith("data: "):
                yield text.removeprefix("data: ")


def _json_or_empty(response: http.client.HTTPResponse) -> dict[str, Any]:
    try:
        body = json.load(response)
        return body if isinstance(body, dict) else {}
    except ValueError:
        return {}


def _reported(body: dict[str, Any]) -> MeshInferError:
    error = body.get("error") or {}
    return from_code(str(error.get("code")), str(error.get("message", "The agent gave no reason.")))
