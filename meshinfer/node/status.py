"""The status document: `meshinfer status --json`, in the words of the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshinfer import __version__
from meshinfer.core.fleet import FleetView, Member, Refusal
from meshinfer.core.ids import FleetId
from meshinfer.node.door import NodeDoor
from meshinfer.node.loop_lag import LoopLag

_NO_MODEL = {"id": None, "state": "none", "progress": 0.0, "why": ""}


class StatusDesk:
    """Puts together what this PC sees and what the leader says."""

    def __init__(
        self,
        fleet: FleetId,
        view: Callable[[], FleetView],
        door: NodeDoor,
        refusals: Callable[[], tuple[Refusal, ...]],
        hints: Callable[[], list[str]],
        lag: LoopLag,
        hop_delay_s: float = 0.0,
    ) -> None:
        self._fleet = fleet
        self._view = view
        self._door = door
        self._refusals = refusals
        self._hints = hints
        self._lag = lag
        self._hop_delay_s = hop_delay_s

    def document(self) -> dict[str, Any]:
        view = self._view()
        leader = self._door.document() or {}
        plan = leader.get("plan")
        me = view.member(view.me)
        return {
            "version": __version__,
            "node": {
                "id": view.me,
                "name": me.name if me else "",
                "role": "leader" if view.leads else "member",
                "loop_lag_ms": round(1000 * self._lag.worst_s, 1),  # worst of the last minute
                "hop_delay_ms": round(1000 * self._hop_delay_s, 3),  # artificial: --hop-delay
            },
            "fleet": {
                "id": self._fleet,
                "epoch": view.epoch.counter,
                "leader": view.leader,
                "members": [member_document(member, plan) for member in view.members],
            },
            "model": leader.get("model") or dict(_NO_MODEL),
            "plan": plan,
            "no_plan": leader.get("no_plan"),
            "serving": leader.get("serving") or {},
            "refusals": [
                {"address": one.address, "reason": one.reason, "at": one.at, "count": one.count}
                for one in self._refusals()
            ],
            "hints": self._hints(),
        }


def member_document(member: Member, plan: dict[str, Any] | None) -> dict[str, Any]:
    """One PC, with its stage of `plan` if it has one."""
    stages = [one for pipe in plan["pipelines"] for one in pipe["stages"]] if plan else []
    stage = next((one for one in stages if one["node"] == member.node), None)
    capacity = member.capacity
    return {
        "id": member.node,
        "name": member.name,
        "state": member.state.value,
        "devices": [device.name for device in capacity.devices],
        "notes": {one.name: one.note for one in capacity.devices if one.note},
        "memory_free": capacity.memory_free,
        "memory_total": capacity.memory_total,
        "address": str(member.agent_addresses[0]) if member.agent_addresses else "",
        "stage": {"first": stage["first"], "last": stage["last"]} if stage else None,
    }
