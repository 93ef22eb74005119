"""What /metrics shows of the fleet, its plan and its ring: the status as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from meshinfer.api.exposition import Sample, SampleKind

_MS = 1000.0
_PARTS = ("compute", "wait", "queue", "handle")


class NodeMetrics:
    """Implements api.exposition.Metrics. `document` is the status of this PC."""

    def __init__(self, document: Callable[[], dict[str, Any]]) -> None:
        self._document = document

    def samples(self) -> Iterator[Sample]:
        document = self._document()
        yield from _fleet(document)
        yield from _serving(document.get("serving") or {})


def _fleet(document: dict[str, Any]) -> Iterator[Sample]:
    fleet = document["fleet"]
    for state in ("alive", "suspect", "dead"):
        count = sum(one["state"] == state for one in fleet["members"])
        labels = (("state", state),)
        yield _gauge("meshinfer_members", "PCs of the fleet as this one sees it.", count, labels)
    yield _gauge("meshinfer_epoch", "The newest epoch that this PC knows.", fleet["epoch"])
    leads = document["node"]["role"] == "leader"
    yield _gauge("meshinfer_leads", "1 when this PC leads.", float(leads))
    lag = "How late the event loop was at worst in the last minute."
    yield _gauge("meshinfer_loop_lag_seconds", lag, document["node"]["loop_lag_ms"] / _MS)
    ready = (document.get("model") or {}).get("state") == "ready"
    yield _gauge("meshinfer_ready", "1 when a model is served.", float(ready))


def _serving(serving: dict[str, Any]) -> Iterator[Sample]:
    """Of the leader, whose figures every PC shows."""
    if not serving:
        return
    gauge = _gauge
    yield gauge("meshinfer_sequences_running", "Answers in the batch.", serving["running"])
    yield gauge("meshinfer_sequences_waiting", "Answers in the queue.", serving["waiting"])
    yield gauge("meshinfer_cache_used_ratio", "Cache of running answers.", serving["cache_used"])
    yield gauge("meshinfer_cache_kept_ratio", "Cache of kept prefixes.", serving["cache_kept"])
    yield _counter("meshinfer_ring_steps_total", "Steps of this plan.", serving["steps"])
    yield _counter("meshinfer_ring_tokens_total", "Tokens drawn in this plan.", serving["tokens"])
    hop = "What of a step's round trip no stage accounts for, for each hop."
    yield gauge("meshinfer_ring_hop_seconds", hop, serving["wire_ms"] / _MS)
    yield from _speculation(serving.get("speculation") or {})
    for number, stage in enumerate(serving["stages"]):
        for part in _PARTS:
            labels = (("stage", str(number)), ("part", part))
            help_ = "Moving average of where a stage's time goes in a step."
            yield gauge("meshinfer_stage_seconds", help_, stage[f"{part}_ms"] / _MS, labels)


def _speculation(figures: dict[str, Any]) -> Iterator[Sample]:
    """Drafts of this plan, and what was decided about them."""
    if not figures:
        return
    proposed, accepted = "Drafts that were verified.", "Drafts that were right."
    yield _counter("meshinfer_drafts_proposed_total", proposed, figures["proposed"])
    yield _counter("meshinfer_drafts_accepted_total", accepted, figures["accepted"])
    draft_s = "Seconds that the draft model computed."
    yield _counter("meshinfer_draft_seconds_total", draft_s, figures["draft_s"])
    help_ = "Rows that went out, by how drafts were used; held: a step waited for drafts."
    for kind, count in figures["decisions"].items():
        name = "meshinfer_speculation_decisions_total"
        yield Sample(name, SampleKind.COUNTER, help_, (("kind", kind),), count)


def _gauge(name: str, help_: str, value: float, labels: tuple[tuple[str, str], ...] = ()) -> Sample:
    return Sample(name, SampleKind.GAUGE, help_, labels, value)


def _counter(name: str, help_: str, value: float) -> Sample:
    return Sample(name, SampleKind.COUNTER, help_, (), value)
