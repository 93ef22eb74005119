"""The forward conversation: a follower hands a request to the leader and relays what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.ids import RequestId
from meshinfer.core.request import Delta, Finished, GenerationRequest, Started


@dataclass(frozen=True, slots=True)
class Ask:
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class AskStarted:
    id: RequestId
    event: Started


@dataclass(frozen=True, slots=True)
class AskDelta:
    id: RequestId
    event: Delta


@dataclass(frozen=True, slots=True)
class AskFinished:
    id: RequestId
    event: Finished


@dataclass(frozen=True, slots=True)
class AskFailed:
    id: RequestId
    code: str
    cause: str
    remedy: str
    param: str | None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class AskCancel:
    id: RequestId


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What the leader tells every PC once a second and on changes: the body of `status --json`.

    `document` is JSON text; followers show it and never act on it.
    """

    document: str
