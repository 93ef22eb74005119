"""Which addresses are told, and in which order they are tried (J04)."""

from __future__ import annotations

import pytest

from meshinfer.core.fleet import Address
from meshinfer.mesh.addresses import (
    InterfaceAddress,
    candidates,
    chosen_for_discovery,
    is_lan,
    ranked,
)

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


@pytest.mark.parametrize(
    "name",
    [
        "docker0", "br-1a2b", "veth0ab", "virbr0", "tun0", "wg0", "tailscale0", "vEthernet (WSL)",
        "vEthernet (Default Switch)", "VirtualBox Host-Only Network", "Tailscale Tunnel", "ifb0",
    ],
)  # fmt: skip
def test_tunnels_and_bridges_carry_no_discovery(name: str) -> None:
    assert not is_lan(InterfaceAddress(name, "192.168.5.1"))
    assert is_lan(InterfaceAddress("Ethernet", "192.168.5.1"))


@pytest.mark.parametrize(
    "host", ["100.64.0.5", "172.17.0.1", "10.255.255.254", "169.254.3.3", "127.0.0.1"]
)
def test_nor_do_addresses_of_overlays_and_containers(host: str) -> None:
    assert not is_lan(InterfaceAddress("eth0", host))


def test_one_address_of_each_lan_interface_is_used() -> None:
    found = [
        *INTERFACES,
        InterfaceAddress("wlan0", "192.168.1.21"),
        InterfaceAddress("wlan0", "fd00::1"),
        InterfaceAddress("Ethernet", "10.2.0.3"),
    ]
    assert [one.host for one in chosen_for_discovery(found)] == ["10.2.0.3", "192.168.1.20"]


def test_loopback_is_used_when_there_is_no_lan() -> None:
    assert chosen_for_discovery(INTERFACES[:2]) == (INTERFACES[0],)
    assert chosen_for_discovery([]) == ()


def test_a_person_decides_which_interface_is_used() -> None:
    assert [one.host for one in chosen_for_discovery(INTERFACES, ["100.64.0.5"])] == ["100.64.0.5"]
    assert chosen_for_discovery(INTERFACES, ["10.9.9.9"]) == ()


def test_names_that_a_person_typed_can_be_ranked() -> None:
    told = [Address("office-pc", 1), Address("127.0.0.1", 1), Address("fe80::1", 1)]
    assert ranked(told)[0].host == "office-pc"
