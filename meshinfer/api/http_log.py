"""aiohttp's own log lines, without what they would quote."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any


class HttpLog(logging.LoggerAdapter[logging.Logger]):
    """Given to aiohttp in place of its logger.

    For bytes that are no HTTP it logs a trace which quotes them. After a wrong Content-Length they
    are the rest of a prompt, in a header too long perhaps a key. Only the kind of error remains.
    """

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        error = kwargs.pop("exc_info", None)
        return (f"{msg}: {type(error).__name__}" if error else msg), kwargs
