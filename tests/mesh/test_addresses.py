"""Which addresses are told, and in which order they are tried (J04)."""

from __future__ import annotations

import pytest

from meshinfer.core.fleet import Address
from meshinfer.mesh.addresses import InterfaceAddress, candidates, ranked

INTERFACES = [
    InterfaceAddress("lo", "127.0.0.1"),
    InterfaceAddress("docker0", "172.17.0.1"),
    InterfaceAddress("eth1", "10.255.255.254"),
    InterfaceAddress("tailscale0", "100.64.0.5"),
    InterfaceAddress("wlan0", "192.168.1.20"),
]


def test_all_are_told_and_the_lan_comes_first() -> None:
    told = candidates(INTERFACES, 9470)
    assert told[0] == Address("192.168.1.20", 9470)
    assert {one.host for one in told} == {one.host for one in INTERFACES} - {"127.0.0.1"}


def test_loopback_is_told_when_there_is_nothing_else() -> None:
    assert candidates(INTERFACES[:1], 9) == (Address("127.0.0.1", 9),)


def test_duplicates_and_link_local_six_are_left_out() -> None:
    found = [*INTERFACES, *INTERFACES, InterfaceAddress("eth0", "fe80::1")]
    told = candidates(found, 1)
    assert len(told) == len(set(told)) == len(INTERFACES) - 1


@pytest.mark.parametrize(
    ("own", "first"),
    [
        (("192.168.1.7",), "192.168.1.20"),
        (("10.1.2.3",), "10.1.2.9"),
        ((), "192.168.1.20"),
    ],
)
def test_a_shared_network_is_tried_first(own: tuple[str, ...], first: str) -> None:
    told = [Address(host, 1) for host in ("127.0.0.1", "192.168.1.20", "10.1.2.9", "100.64.0.5")]
    order = ranked(told, own)
    assert order[0].host == first
    assert order[-1].host == "127.0.0.1"
    assert set(order) == set(told)


def test_the_order_does_not_depend_on_how_they_were_told() -> None:
    told = [Address(one.host, 1) for one in INTERFACES]
    assert [one.host for one in ranked(told)][0] == "192.168.1.20"
    assert ranked(told)[-1] == ranked(reversed(told))[-1]
