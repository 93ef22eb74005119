"""PCs and what they report."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from meshinfer.core.ids import NO_EPOCH, Epoch, NodeId


@dataclass(frozen=True, order=True, slots=True)
class Address:
    """Where a port may be reached. Never an identity: TLS decides who answers there."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """`HOST:PORT` or `[V6]:PORT`. Raises ValueError that says what is wrong."""
        host, separator, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not separator or not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"'{text}' is not HOST:PORT")
        return cls(host, int(port))


@dataclass(frozen=True, slots=True)
class Device:
    """One OpenVINO device as far as the planner cares."""

    name: str  # "CPU", "GPU.0", "NPU"
    full_name: str
    memory: int  # bytes that a stage may use there; for the CPU the same as the node's budget
    precisions: tuple[str, ...]  # subset of ("f32", "bf16", "f16") that it computes in
    note: str = ""  # why it is not used, when it is not
    speed: float = 0.0  # bytes of weights a second that a stage's step reads there; 0: not measured


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a PC offers now."""

    memory_total: int  # bytes
    memory_free: int  # bytes that stages may use here, after the owner's reserve
    cores: int
    devices: tuple[Device, ...]
    openvino: str  # version


class MemberState(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"  # heartbeats are late; still in the plan
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Member:
    """A PC of the fleet as this PC sees it."""

    node: NodeId
    name: str
    state: MemberState
    capacity: Capacity
    agent_addresses: tuple[Address, ...]  # candidates, best first
    ring_addresses: tuple[Address, ...]  # where its stage hosts listen
    holds_model: bool = False  # it could lead without fetching anything
    joined_at_s: float = 0.0  # this PC's monotonic clock


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet at one moment, from one PC."""

    me: NodeId
    members: tuple[Member, ...]  # with this PC; ordered by node id
    epoch: Epoch = NO_EPOCH
    leader: NodeId | None = None  # None while nobody holds the lease

    @property
    def leads(self) -> bool:
        return self.leader == self.me

    def member(self, node: NodeId) -> Member | None:
        return next((member for member in self.members if member.node == node), None)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Somebody who was not let in, kept for `status`."""

    address: str
    reason: str
    at: float  # seconds since 1970
    count: int = field(default=1, compare=False)
