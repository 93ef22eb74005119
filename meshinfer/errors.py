"""Every error a person or a peer may meet, split by what the caller can do.

    MeshInferError
    ├── InvalidRequest        mend the request                                   400
    │   └── ContextTooLong    shorten the prompt                                 400
    ├── ModelNotFound         ask for a model that is served                     404
    ├── Overloaded            come back later                                    429
    ├── NotReady              wait: the fleet is loading, electing or re-planning 503
    │   └── NotEnoughMemory   add a PC, free memory or choose a smaller model    503
    ├── PeerLost              ask again: a PC of the ring is gone                503
    ├── TimedOut              ask again: a PC did not answer in time             504
    ├── StageFailed           read the log of that PC: its engine gave up        500
    │   └── CacheLost         compute these sequences again from their tokens (between PCs only)
    ├── TrustRefused          join with the right code; the other PC is not of this fleet
    ├── VersionMismatch       update the older PC
    ├── ProtocolViolation     a peer broke the rules; the link is closed
    ├── ShardCorrupt          fetch the piece again: its digest is wrong
    ├── DiskFull              free disk space
    └── UsageError            correct the command

`code` names the kind on the wire and in OpenAI's error envelope, `remedy` is what to do, and
`details` carries figures (bytes, token counts). All three are safe to show: no error ever holds
text of a prompt or a secret.
"""

from __future__ import annotations

from typing import ClassVar


class MeshInferError(Exception):
    """Base of all errors that callers may handle. `str()` is the cause, then what to do.

    `retry_after_s` is how long to wait before asking again, where somebody can tell.
    """

    code: ClassVar[str] = "internal_error"

    def __init__(self, cause: str, remedy: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}".strip()


class InvalidRequest(MeshInferError):
    """The request is malformed; `param` names the field."""

    code = "invalid_request"

    def __init__(self, cause: str, remedy: str = "", param: str | None = None) -> None:
        super().__init__(cause, remedy)
        self.param = param


class ContextTooLong(InvalidRequest):
    """The prompt does not fit the context; both numbers are in the text."""

    code = "context_length_exceeded"

    def __init__(self, cause: str, remedy: str = "", param: str | None = "messages") -> None:
        super().__init__(cause, remedy, param)


class ModelNotFound(MeshInferError):
    """No such model is served or known."""

    code = "model_not_found"


class Overloaded(MeshInferError):
    """Too many requests wait already."""

    code = "overloaded"


class NotReady(MeshInferError):
    """The fleet cannot answer yet."""

    code = "not_ready"


class NotEnoughMemory(NotReady):
    """The model does not fit the memory that the fleet reports; both figures are in the text."""

    code = "not_enough_memory"


class PeerLost(MeshInferError):
    """A PC that this work needs is gone."""

    code = "peer_lost"


class TimedOut(MeshInferError):
    """A PC did not answer in time."""

    code = "timed_out"


class StageFailed(MeshInferError):
    """An engine failed while loading or computing."""

    code = "stage_failed"


class CacheLost(StageFailed):
    """A step builds on more cached tokens of `sequences` than this stage has: it gave them up. The
    step was not computed."""

    code = "cache_lost"

    def __init__(self, cause: str, remedy: str = "", sequences: tuple[int, ...] = ()) -> None:
        super().__init__(cause, remedy)
        self.sequences = sequences


class TrustRefused(MeshInferError):
    """The other side does not belong to this fleet, or is not who it should be."""

    code = "trust_refused"


class VersionMismatch(MeshInferError):
    """Both sides name their versions; neither guesses."""

    code = "version_mismatch"


class ProtocolViolation(MeshInferError):
    """A peer sent what its plan or the protocol does not allow."""

    code = "protocol_violation"


class ShardCorrupt(MeshInferError):
    """Bytes do not have the digest that the manifest promises."""

    code = "shard_corrupt"


class DiskFull(MeshInferError):
    """There is not enough room on the disk."""

    code = "disk_full"


class UsageError(MeshInferError):
    """A command was called with words that do not fit together."""

    code = "usage"


def _all_kinds() -> dict[str, type[MeshInferError]]:
    found: dict[str, type[MeshInferError]] = {}
    waiting: list[type[MeshInferError]] = [MeshInferError]
    while waiting:
        kind = waiting.pop()
        found[kind.code] = kind
        waiting.extend(kind.__subclasses__())
    return found


KINDS = _all_kinds()


def from_code(code: str, cause: str, remedy: str = "") -> MeshInferError:
    """The error that a peer named by `code`; an unknown code becomes the base class."""
    return KINDS.get(code, MeshInferError)(cause, remedy)
