"""Leadership. Soft: two leaders may exist in a partition; node leases make that harmless.

candidate   PC
Campaign ->          may I lead you?
         <-  Grant or Deny
Renew    ->          every second while it leads
         <-  Grant or Deny
Resign   ->          the lease is free again

Every question is answered, a stale one with what is current: a PC that missed something learns it
with its next message (exo's restarted master was ignored for ever, issue 2197).
"""

from __future__ import annotations

from dataclasses import dataclass

from meshinfer.core.ids import Epoch

LARGEST_COUNTER = 1 << 48
"""An epoch a second for nine million years; keeps a broken PC from exhausting the integers."""


def check_counter(epoch: Epoch) -> None:
    """Raise ValueError for a counter that no fleet reaches."""
    if not 0 <= epoch.counter <= LARGEST_COUNTER:
        raise ValueError(f"epoch counter {epoch.counter}")


@dataclass(frozen=True, slots=True)
class Campaign:
    """The sender wants to lead; `epoch` is newer than all that it has seen and already on disk."""

    epoch: Epoch

    def __post_init__(self) -> None:
        check_counter(self.epoch)


@dataclass(frozen=True, slots=True)
class Renew:
    """The leader prolongs the lease; the follower answers with Grant or Deny."""

    epoch: Epoch
    round: int  # counts the leader's renewals; a Grant repeats it, so that its age is known

    def __post_init__(self) -> None:
        check_counter(self.epoch)


@dataclass(frozen=True, slots=True)
class Grant:
    """The sender's lease belongs to `epoch` from now on for the agreed time."""

    epoch: Epoch
    round: int  # of the Renew; 0 for a Campaign

    def __post_init__(self) -> None:
        check_counter(self.epoch)


@dataclass(frozen=True, slots=True)
class Deny:
    """Not granted. With `held` the sender's lease belongs to `current`; without, the sender is
    free but has accepted a newer epoch than `asked`, and `current` is the newest that it knows."""

    asked: Epoch
    current: Epoch
    held: bool

    def __post_init__(self) -> None:
        check_counter(self.asked)
        check_counter(self.current)


@dataclass(frozen=True, slots=True)
class Resign:
    """The sender does not lead (or no longer seeks) `epoch`: a lease granted for it is free."""

    epoch: Epoch

    def __post_init__(self) -> None:
        check_counter(self.epoch)
