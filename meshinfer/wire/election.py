"""Leadership. Soft: two leaders may exist in a partition; node leases make that harmless."""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.ids import Epoch


@dataclass(frozen=True, slots=True)
class Campaign:
    """The sender wants to lead; `epoch` is newer than all that it has seen and already on disk."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Grant:
    """The sender's lease now belongs to `epoch`."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Deny:
    """The sender's lease belongs to somebody else; `current` is the newest epoch it knows."""

    asked: Epoch
    current: Epoch


@dataclass(frozen=True, slots=True)
class Renew:
    """The leader prolongs the lease; the follower answers with Grant or Deny."""

    epoch: Epoch
