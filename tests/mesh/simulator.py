"""A whole fleet in one thread: FleetState under injected time, network, disk, faults. Seeded.

Links behave like TCP: in order, delayed; a cut direction swallows everything, closing included; an
uncut close is noticed. On top of that single messages may be lost, which TCP would not do: the
protocol must not depend on any one of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from random import Random

from meshinfer.core.fleet import Address, Capacity
from meshinfer.core.ids import Epoch, NodeId
from meshinfer.mesh.fleet_state import FleetState
from meshinfer.mesh.instructions import CloseLink, Instruction, Persist, Post, Redial, Send
from meshinfer.mesh.timing import ElectionTiming, MeshTiming
from meshinfer.mesh.world import Me
from tests.mesh.invariants import Invariants, Pc

CAPACITY = Capacity(16 << 30, 8 << 30, 4, (), "2026.4.1")
# Not round, or sums and differences of times would be exact: an office once never asked a late
# joiner because now - (now - 0.93) was a little less than 0.93.
TIMING = MeshTiming(tick_s=0.25, lag_s=0.3, heartbeat_s=0.97, election=ElectionTiming(renew_s=0.93))
DIAL_EVERY_S = 0.5


class Simulator:
    """`advance` moves time; faults are methods. Every event is checked against `Invariants`."""

    def __init__(self, seed: int, size: int, timing: MeshTiming = TIMING) -> None:
        self.random = Random(seed)
        self.now = 1e6 * self.random.random() + self.random.random() / 3
        self.timing = timing
        self.delay_s = 0.002
        self.loss = 0.0
        self.pcs = {
            NodeId(f"pc{number}"): Pc(NodeId(f"pc{number}"), self.random.random() < 0.4)
            for number in range(size)
        }
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self._invariants = Invariants(self.pcs)
        self._links: dict[int, tuple[NodeId, NodeId]] = {}
        self._closed: set[tuple[int, NodeId]] = set()  # ends that are closed
        self._arrivals: dict[tuple[int, NodeId], float] = {}
        self._numbers = count(1)
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    # Time

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), action))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end

    # Faults

    def start(self, node: NodeId) -> None:
        pc = self.pcs[node]
        assert pc.state is None
        pc.incarnation += 1
        me = Me(node, str(node), pc.incarnation, (Address("memory", 1),), (), "1")
        own = Random(self.random.getrandbits(32))
        pc.state = FleetState(me, pc.disk, CAPACITY, self.timing, own, self.now)
        pc.state.report(CAPACITY, pc.holds_model, False)
        pc.dialling.clear()
        pc.ticked_at = self.now
        run = pc.state
        self.at(self.random.random() * self.timing.tick_s, lambda: self._tick(pc, run))
        self.at(self.random.random() * 0.1, lambda: self._dial_round(pc, run))

    def kill(self, node: NodeId) -> None:
        pc = self.pcs[node]
        pc.state = None
        pc.waiting.clear()
        pc.paused_until = 0.0
        for link, ends in list(self._links.items()):
            if node in ends:
                self._close_end(link, node)

    def pause(self, node: NodeId, seconds: float) -> None:
        pc = self.pcs[node]
        pc.paused_until = max(pc.paused_until, self.now + seconds)
        self.at(seconds, lambda: self._resume(pc))

    def cut(self, source: NodeId, target: NodeId) -> None:
        self.cuts.add((source, target))

    def partition(self, side: Iterable[NodeId]) -> None:
        inside = set(side)
        for source in self.pcs:
            for target in self.pcs:
                if (source in inside) != (target in inside):
                    self.cut(source, target)

    def heal(self) -> None:
        """No more faults; PCs that are down start again."""
        self.cuts.clear()
        self.loss = 0.0
        for node, pc in self.pcs.items():
            if pc.state is None:
                self.start(node)

    # What is seen

    @property
    def elections(self) -> set[Epoch]:
        """Epochs that were led in."""
        return {epoch for _, epoch in self.led}

    @property
    def led(self) -> list[tuple[float, Epoch]]:
        """When each of them began."""
        return self._invariants.led

    def up(self) -> list[Pc]:
        return [pc for pc in self.pcs.values() if pc.state is not None]

    def leaders(self) -> set[NodeId | None]:
        """What the running PCs believe."""
        return {pc.running.view(self.now).leader for pc in self.up()}

    def agreed(self) -> bool:
        """One leader, in one epoch, followed by all, and everybody knows everybody."""
        views = [pc.running.view(self.now) for pc in self.up()]
        first = views[0]
        return first.leader is not None and all(
            view.leader == first.leader
            and view.epoch == first.epoch
            and len([one for one in view.members if one.state.value == "alive"]) == len(views)
            for view in views
        )

    # The shell's part

    def _run(self, pc: Pc, action: Callable[[FleetState], list[Instruction]]) -> None:
        """Let a PC handle an event now, or when its pause is over."""
        state = pc.state
        if state is None:
            return
        if self.now < pc.paused_until:
            pc.waiting.append(lambda: self._run_if(pc, state, action))
            return
        before = state.lease(self.now)
        steps = action(state)
        self._invariants.check_faithful(pc, before, state.lease(self.now), self.now)
        self._execute(pc, steps)
        self._invariants.check(pc, self.now)

    def _run_if(
        self, pc: Pc, run: FleetState, action: Callable[[FleetState], list[Instruction]]
    ) -> None:
        if pc.state is run:
            self._run(pc, action)

    def _resume(self, pc: Pc) -> None:
        if pc.state is None or self.now < pc.paused_until:
            return
        self._notice_pause(pc)
        waiting, pc.waiting = pc.waiting, []
        for action in waiting:
            action()

    def _notice_pause(self, pc: Pc) -> None:
        late_s = self.now - pc.ticked_at - self.timing.tick_s
        pc.ticked_at = self.now
        if late_s > self.timing.jump_s:
            self._run(pc, lambda state: state.woke(self.now))
            pc.incarnation += 1
            pc.running.restart(pc.incarnation)
        elif late_s > self.timing.lag_s:
            pc.running.lagged(self.now)

    def _tick(self, pc: Pc, run: FleetState) -> None:
        if pc.state is not run:
            return
        self.at(self.timing.tick_s, lambda: self._tick(pc, run))
        if self.now >= pc.paused_until:
            self._notice_pause(pc)
            self._run(pc, lambda state: state.tick(self.now))

    def _execute(self, pc: Pc, steps: list[Instruction]) -> None:
        for step in steps:
            match step:
                case Persist(epoch):
                    run = pc.running
                    delay_s = self.random.random() * 0.02
                    self.at(delay_s, lambda epoch=epoch, run=run: self._on_disk(pc, run, epoch))
                case Send(node, message):
                    link = pc.running.primary(node)
                    if link is not None:
                        self._post(pc, link, message)
                case Post(link, message):
                    self._post(pc, link, message)
                case CloseLink(link, _):
                    self._close_end(link, pc.node)
                case Redial(node):
                    self._dial(pc, self.pcs[node], once=True)

    def _on_disk(self, pc: Pc, run: FleetState, epoch: Epoch) -> None:
        if pc.state is run:
            pc.disk = max(pc.disk, epoch)
            self._run(pc, lambda state: state.persisted(epoch, self.now))

    # The network

    def _post(self, pc: Pc, link: int, message: object) -> None:
        if (link, pc.node) in self._closed:
            return
        other = self.pcs[self._other(link, pc.node)]
        if (pc.node, other.node) in self.cuts or self.random.random() < self.loss:
            return
        self._arrive(link, other, lambda state: state.received(link, message, self.now))  # type: ignore[arg-type]

    def _arrive(
        self, link: int, other: Pc, action: Callable[[FleetState], list[Instruction]]
    ) -> None:
        arrival = self.now + self.delay_s * (0.5 + self.random.random())
        arrival = max(arrival, self._arrivals.get((link, other.node), 0.0) + 1e-6)
        self._arrivals[link, other.node] = arrival
        run = other.state

        def deliver() -> None:
            if run is not None and (link, other.node) not in self._closed:
                self._run_if(other, run, action)

        self.at(arrival - self.now, deliver)

    def _close_end(self, link: int, node: NodeId) -> None:
        """One side closes; the other notices if its direction is not cut."""
        if (link, node) in self._closed:
            return
        self._closed.add((link, node))
        other = self.pcs[self._other(link, node)]
        if (node, other.node) not in self.cuts and other.state is not None:
            run = other.state

            def notice() -> None:
                if (link, other.node) not in self._closed:
                    self._closed.add((link, other.node))
                    self._run_if(other, run, lambda state: state.link_down(link, self.now))

            arrival = max(self.now + self.delay_s, self._arrivals.get((link, other.node), 0.0))
            self.at(arrival - self.now + 1e-6, notice)

    def _other(self, link: int, node: NodeId) -> NodeId:
        first, second = self._links[link]
        return second if node == first else first

    def _dial_round(self, pc: Pc, run: FleetState) -> None:
        if pc.state is not run:
            return
        self.at(
            DIAL_EVERY_S * (0.8 + 0.4 * self.random.random()), lambda: self._dial_round(pc, run)
        )
        if self.now >= pc.paused_until:
            for other in self.pcs.values():
                if other is not pc and other.node not in run.linked() | pc.dialling:
                    self._dial(pc, other, once=False)

    def _dial(self, pc: Pc, other: Pc, once: bool) -> None:
        run, answering = pc.running, other.state
        reachable = self.cuts.isdisjoint([(pc.node, other.node), (other.node, pc.node)])
        pc.dialling.add(other.node)

        def fail() -> None:
            if pc.state is run:
                pc.dialling.discard(other.node)
                if once:
                    self._run(pc, lambda state: state.redial_failed(other.node, self.now))

        if answering is None or not reachable or self.now < other.paused_until:
            self.at(self.delay_s if reachable and answering is None else 1.0, fail)
            return
        self.at(2 * self.delay_s, lambda: self._greet(pc, run, other, answering))

    def _greet(self, pc: Pc, run: FleetState, other: Pc, answering: FleetState) -> None:
        pc.dialling.discard(other.node)
        if pc.state is not run or other.state is not answering:
            return
        link = next(self._numbers)
        self._links[link] = (pc.node, other.node)
        drawn = self.random.getrandbits(32)
        hello = run.introduction(drawn, self.now)
        reply = answering.introduction(drawn, self.now)
        self._arrive(
            link, other, lambda state: state.link_up(link, pc.node, pc.node, hello, self.now)
        )
        self._arrive(
            link, pc, lambda state: state.link_up(link, other.node, pc.node, reply, self.now)
        )
