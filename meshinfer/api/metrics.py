"""GET /metrics: the figures of this PC and of its API, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from aiohttp import web
from aiohttp.typedefs import Handler

from meshinfer.api.exposition import CONTENT_TYPE, Metrics, Sample, exposition


class NoMetrics:
    """Metrics of a PC that has none of its own."""

    def samples(self) -> Iterable[Sample]:
        return ()


def metrics_handler(*sources: Metrics) -> Handler:
    async def metrics(request: web.Request) -> web.Response:
        text = exposition(chain.from_iterable(source.samples() for source in sources))
        return web.Response(
            body=text.encode("utf-8", "replace"), headers={"Content-Type": CONTENT_TYPE}
        )

    return metrics
