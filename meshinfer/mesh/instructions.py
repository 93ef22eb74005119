"""What the pure parts tell the shell to do, in order."""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.ids import Epoch, NodeId


@dataclass(frozen=True, slots=True)
class Persist:
    """Have `epoch` on disk, then tell `persisted`. What depends on it is said only after that."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Send:
    """To a PC, on whichever link is in use; dropped when there is none."""

    node: NodeId
    message: object


@dataclass(frozen=True, slots=True)
class Post:
    """On one link."""

    link: int
    message: object


@dataclass(frozen=True, slots=True)
class CloseLink:
    """After what is queued on it was written."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class Redial:
    """Try once, now, at the addresses that the PC told."""

    node: NodeId


Instruction = Persist | Send | Post | CloseLink | Redial
