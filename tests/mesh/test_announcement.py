"""What is told by mDNS, and what is believed of what others tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.fleet import Address
from meshinfer.core.ids import FleetId, NodeId
from meshinfer.mesh.announcement import (
    MOST_HOSTS,
    MOST_TRACKED,
    Announcement,
    Sightings,
    instance,
    text,
    understood,
)
from meshinfer.mesh.hints import OtherFleet, PeerFound, PeerLost

ME, PEER = NodeId("m" * 52), NodeId("p" * 52)
FLEET, OTHER = FleetId("0" * 20), FleetId("f" * 20)
HOSTS = ["192.168.1.2"]
HERE = (Address("192.168.1.2", 7000),)


def entries(**changes: str | None) -> dict[bytes, bytes | None]:
    words = dict(text(PEER, FLEET, 7000)) | changes
    return {key.encode(): value.encode() for key, value in words.items() if value is not None}


def test_what_is_told_is_understood_and_short() -> None:
    assert understood(instance(PEER), entries(), HOSTS) == Announcement(PEER, FLEET, HERE)
    assert sum(len(k) + len(v) + 2 for k, v in text(PEER, FLEET, 65535).items()) < 200
    assert len(instance(PEER).split(".")[0].encode()) <= 63


@pytest.mark.parametrize(
    "changes",
    [
        {"v": "2"}, {"v": None}, {"fleet": None}, {"fleet": "F" * 20}, {"fleet": "0" * 21},
        {"node": None}, {"node": "P" * 52}, {"node": "p" * 51}, {"node": "q" * 52},
        {"port": None}, {"port": "0"}, {"port": "65536"}, {"port": "-1"}, {"port": "7000 "},
        {"port": "seven"}, {"port": "\u0667"},
    ],
)  # fmt: skip
def test_malformed_entries_are_not_believed(changes: dict[str, str | None]) -> None:
    assert understood(instance(PEER), entries(**changes), HOSTS) is None


def test_another_name_or_no_address_is_not_believed() -> None:
    assert understood(instance(ME), entries(), HOSTS) is None
    assert understood(instance(PEER), entries(), []) is None


def test_many_addresses_are_cut() -> None:
    told = understood(instance(PEER), entries(), [f"10.0.0.{n}" for n in range(99)])
    assert told is not None
    assert len(told.addresses) == MOST_HOSTS


@given(
    st.dictionaries(st.sampled_from([b"v", b"fleet", b"node", b"port", b"x"]), st.binary()),
    st.text(),
)
def test_any_bytes_are_survived(words: dict[bytes, bytes], name: str) -> None:
    assert understood(name, words, HOSTS) is None


def told(
    node: NodeId = PEER, fleet: FleetId = FLEET, addresses: tuple[Address, ...] = HERE
) -> Announcement:
    return Announcement(node, fleet, addresses)


def test_a_pc_is_said_once_and_again_when_it_moved() -> None:
    seen = Sightings(ME, FLEET)
    assert seen.saw("eth0", told()) == PeerFound(PEER, FLEET, HERE)
    assert seen.saw("eth0", told()) is None
    moved = (Address("192.168.1.2", 7001),)
    assert seen.saw("eth0", told(addresses=moved)) == PeerFound(PEER, FLEET, moved)


def test_its_own_announcement_and_nonsense_are_no_hints() -> None:
    seen = Sightings(ME, FLEET)
    assert seen.saw("eth0", told(ME)) is None
    assert seen.saw("eth0", None) is None
    assert seen.ignored == 1


def test_a_pc_on_two_networks_is_lost_with_the_second() -> None:
    seen = Sightings(ME, FLEET)
    other = (Address("10.0.0.2", 7000),)
    seen.saw("eth0", told())
    assert seen.saw("wlan0", told(addresses=other)) == PeerFound(PEER, FLEET, other + HERE)
    assert seen.lost("eth0", instance(PEER)) is None
    assert seen.lost("eth0", instance(PEER)) is None
    assert seen.lost("wlan0", instance(PEER)) == PeerLost(PEER)
    assert seen.lost("wlan0", "anything") is None


def test_other_fleets_are_counted_and_said_once() -> None:
    seen = Sightings(ME, FLEET)
    nodes = [NodeId(letter * 52) for letter in "abc"]
    assert [seen.saw("eth0", told(node, OTHER)) for node in nodes] == [
        OtherFleet(OTHER),
        None,
        None,
    ]
    assert seen.other_fleets() == {OTHER: 3}
    seen.lost("eth0", instance(nodes[0]))
    assert seen.other_fleets() == {OTHER: 2}


@pytest.mark.parametrize("fleet", [FLEET, OTHER])
def test_a_flood_is_bounded(fleet: FleetId) -> None:
    seen = Sightings(ME, FLEET)
    nodes = [NodeId(f"{number:052}") for number in range(MOST_TRACKED + 50)]
    hints = [seen.saw("eth0", told(node, fleet)) for node in nodes]
    assert seen.ignored == 50
    assert hints[-50:] == [None] * 50
    assert sum(seen.other_fleets().values()) == (MOST_TRACKED if fleet == OTHER else 0)
