"""What of a view is worth waking a watcher for. Pure."""

from __future__ import annotations

from meshinfer.core.fleet import FleetView


def outline(view: FleetView) -> object:
    """Equal for two views with the same members, starts, states, leader and epoch.

    Free memory changes all the time; who needs it reads it when it plans.
    """
    members = tuple(
        (one.node, one.state, one.joined_at_s, one.name, one.holds_model) for one in view.members
    )
    return (members, view.epoch, view.leader)
