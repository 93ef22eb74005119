"""Whom to dial, when, at which addresses. Pure policy; `Dialling` acts on it.

mDNS, `--peer`, the peers known from earlier and what other PCs tell feed one queue. All are hints:
who answers is decided by TLS. A PC that is linked is never dialled, nor is this PC itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from meshinfer.core.fleet import Address
from meshinfer.core.ids import NodeId, short
from meshinfer.mesh.addresses import ranked
from meshinfer.mesh.timing import MeshTiming

MOST_TARGETS = 320  # 256 found by mDNS and 64 known; more is noise or an attack
MOST_ADDRESSES = 16  # of one PC
MOST_AT_ONCE = 32  # PCs being dialled; a flood of false hints opens no flood of connections

Key = NodeId | Address


@dataclass(slots=True)
class Target:
    """Somebody to dial: a PC by its id, or an address whose PC is not known yet."""

    key: Key
    addresses: tuple[Address, ...]
    node: NodeId | None
    is_seed: bool = False
    failures: int = 0
    due_at: float = 0.0
    tried_at: float = -1e9
    dialling: bool = False

    def __str__(self) -> str:
        where = ", ".join(map(str, self.addresses))
        return f"{short(self.node)} at {where}" if self.node else where


class DialQueue:
    """`own_hosts` are this PC's addresses, to try the near ones first."""

    def __init__(
        self, me: NodeId, own_hosts: Iterable[str], timing: MeshTiming, random: Random
    ) -> None:
        self._me = me
        self._own_hosts = tuple(own_hosts)
        self._timing = timing
        self._random = random
        self._targets: dict[Key, Target] = {}

    def seed(self, address: Address, now: float) -> None:
        """An address that a person named; it is never given up."""
        self._targets[address] = Target(address, (address,), None, is_seed=True, due_at=now)

    def hint(
        self, node: NodeId, addresses: Iterable[Address], now: float, *, fresh: bool = False
    ) -> None:
        """`node` may be at `addresses`. `fresh`: it is there now, so dial at once.

        At once means after a pause when it was tried just now: hints come from anybody on the LAN,
        and two PCs of which one closes each link as it comes up would dial without end.
        """
        told = ranked(addresses, self._own_hosts)[:MOST_ADDRESSES]
        if node == self._me or not told:
            return
        target = self._targets.get(node)
        if target is None:
            self._make_room()
            self._targets[node] = Target(node, told, node, due_at=now)
            return
        known = target.addresses
        kept = [one for one in known[:1] if one in told]  # what worked stays first
        merged = kept + [one for one in (*told, *known) if one not in kept]
        target.addresses = tuple(dict.fromkeys(merged))[:MOST_ADDRESSES]
        if fresh or set(told) - set(known):
            target.failures = 0
            at_once = max(now, target.tried_at + self._timing.redial_pause_s)
            target.due_at = min(target.due_at, at_once)

    def due(self, linked: frozenset[NodeId], now: float) -> list[Target]:
        """Targets to dial now; each is marked until `failed` or `reached`."""
        busy = {target.node for target in self._targets.values() if target.dialling} - {None}
        ready = [
            target
            for target in self._targets.values()
            if not target.dialling and target.due_at <= now and target.node not in linked | busy
        ]
        ready = ready[: max(0, MOST_AT_ONCE - len(busy))]
        for target in ready:
            target.dialling = True
            target.tried_at = now
        return ready

    def failed(self, target: Target, now: float, *, refused: bool = False) -> None:
        """Nobody answered; `refused`: somebody did who is not of this fleet or of its version."""
        target.dialling = False
        target.failures += 1
        timing = self._timing
        wait_s = min(
            timing.redial_longest_s, timing.redial_first_s * 2.0 ** min(target.failures - 1, 32)
        )
        if refused and target.is_seed and target.node is not None:
            target.node = None  # the PC there was set up anew: it has another id now
        elif refused:
            wait_s = timing.redial_longest_s
        spread = timing.redial_spread * (2.0 * self._random.random() - 1.0)
        target.due_at = now + wait_s * (1.0 + spread)

    def reached(self, target: Target, node: NodeId, address: Address, now: float) -> None:
        """`node` answered at `address`: it is tried first from now on."""
        target.dialling = False
        target.failures = 0
        target.due_at = now + self._timing.redial_first_s
        if node == self._me:
            self._targets.pop(target.key, None)  # a seed that names this PC
            return
        target.node = node
        for known in (target, self._targets.get(node)):  # a seed, and what else is known of it
            if known is not None:
                rest = (one for one in known.addresses if one != address)
                known.addresses = (address, *rest)[:MOST_ADDRESSES]

    def rest(self, node: NodeId, now: float) -> None:
        """`node` said goodbye: give it time to end before asking whether it came back."""
        for target in self._targets.values():
            if target.node == node:
                target.failures = 1
                target.due_at = now + self._timing.goodbye_rest_s

    def is_trying(self, linked: frozenset[NodeId]) -> bool:
        """Whether somebody not linked has not been tried to the end once."""
        return any(
            target.failures == 0 and target.node not in linked for target in self._targets.values()
        )

    def addresses(self, node: NodeId) -> tuple[Address, ...]:
        """Where `node` may be dialled, what worked first."""
        target = self._targets.get(node)
        return target.addresses if target else ()

    def failing(self) -> tuple[Target, ...]:
        """Targets that never answered lately, for people to read."""
        return tuple(target for target in self._targets.values() if target.failures)

    def _make_room(self) -> None:
        """Give up the target that failed most; seeds stay."""
        idle = [one for one in self._targets.values() if not (one.is_seed or one.dialling)]
        if len(self._targets) >= MOST_TARGETS and idle:
            worst = max(idle, key=lambda target: target.failures)
            del self._targets[worst.key]
