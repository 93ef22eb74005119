"""Every constant of the mesh, in seconds, so that a test can scale them. Reasons stand beside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """What the election waits for. Each wait ends with a decision."""

    renew_s: float = 1.0
    lease_s: float = 5.0  # what a PC grants
    demote_s: float = 4.0  # a leader without grants gives up before the leases given to it end
    lone_s: float = 1.0  # a PC that meets nobody leads itself after this time
    lone_dialling_s: float = 2.5  # the same while somebody known is still being dialled
    settle_s: float = 0.15  # the best candidate lets the others' first words arrive
    jitter_s: float = 0.3
    campaign_s: float = 1.0  # how long answers are waited for
    await_better_s: float = 1.2  # for a better candidate's campaign
    await_leader_s: float = 3.0  # for the renewal of a leader that is known to lead
    decide_s: float = 6.0  # whatever the reason to wait: then campaign


@dataclass(frozen=True, slots=True)
class MeshTiming:
    """Figures of facts/mesh.md B1 where nothing else is said."""

    election: ElectionTiming = ElectionTiming()
    tick_s: float = 0.1
    heartbeat_s: float = 1.0
    suspect_s: float = 2.5
    dead_s: float = 5.0
    redial_grace_s: float = 0.5  # after a reset the other side may dial first
    lag_s: float = 0.25  # own event loop late by more: this PC is the slow one
    no_accusing_s: float = 1.0  # what waits in the sockets is read first
    patient_s: float = 10.0  # own timeouts are doubled after a lag
    jump_s: float = 5.0  # wall clock against monotonic clock, or a tick so late: the PC slept
    forget_dead_s: float = 600.0
    hello_s: float = 5.0
    supersede_s: float = 2.0
    close_s: float = 1.0  # to write what is queued on a link that is being closed
    dial_s: float = 1.0  # an address; then the next
    redial_pause_s: float = 0.5  # no target is dialled more often, whatever the hints say
    redial_first_s: float = 1.0
    redial_longest_s: float = 60.0
    redial_spread: float = 0.2
    goodbye_rest_s: float = 5.0  # before a PC that left is dialled again
    remember_s: float = 5.0  # how often the list of known peers goes to disk, if it changed
    exchange_s: float = 30.0
    alone_s: float = 20.0  # then the log says why that may be
