"""Which of this PC's addresses to tell others, and in which order to try those of another. Pure.

Exo advertised docker0 (issue 858); others a VPN or WSL address. So nothing is trusted: likely
addresses come first, all of them are told, and the one that answers is kept.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshinfer.core.fleet import Address

# Beginnings of names (lower case) of interfaces that lead into this PC or into a tunnel.
_VIRTUAL = (
    "docker", "br-", "virbr", "veth", "vnet", "cni", "flannel", "cali", "podman", "lxc", "lxd",
    "tun", "tap", "wg", "tailscale", "zt", "utun", "ppp", "ipsec", "nordlynx", "vboxnet", "vmnet",
    "vethernet", "hyper-v", "wsl", "virtualbox", "vmware", "openvpn", "wireguard", "ifb", "dummy",
    "npcap", "teredo", "isatap", "bluetooth", "awdl", "llw",
)  # fmt: skip
_VIRTUAL_WORDS = ("wsl", "docker", "hyper-v", "vpn", "tailscale", "zerotier", "wintun", "loopback")
_SHARED = ipaddress.ip_network("100.64.0.0/10")  # carrier NAT; overlays such as Tailscale use it
_CONTAINER = ipaddress.ip_network("172.17.0.0/16")  # docker's default bridge
_WSL = ipaddress.ip_network("10.255.255.254/32")  # loopback helper inside WSL2

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, order=True, slots=True)
class InterfaceAddress:
    """One address of one network interface of this PC."""

    interface: str  # name as people know it
    host: str  # IPv4 or IPv6 without zone


def is_lan(one: InterfaceAddress) -> bool:
    """Whether other PCs are likely to be found behind it."""
    return not _is_virtual(one.interface) and _badness(one.host) <= _LAST_LAN


def chosen_for_discovery(
    found: Sequence[InterfaceAddress], only: Sequence[str] = ()
) -> tuple[InterfaceAddress, ...]:
    """Addresses whose interfaces carry mDNS, at most one IPv4 each, ordered.

    `only`: hosts that a person or a test restricts it to. Loopback is used when nothing else is
    there: agents on one machine without a network still find each other.
    """
    four = [one for one in found if _version(one.host) == 4]
    if only:
        return tuple(sorted(one for one in four if one.host in only))
    lan = [one for one in four if is_lan(one)]
    chosen = lan or [one for one in four if ipaddress.ip_address(one.host).is_loopback]
    first: dict[str, InterfaceAddress] = {}
    for one in sorted(chosen, key=lambda one: (one.interface, _badness(one.host), one.host)):
        first.setdefault(one.interface, one)
    return tuple(first.values())


def candidates(found: Iterable[InterfaceAddress], port: int) -> tuple[Address, ...]:
    """All that others may try to reach this PC, the likeliest first, without duplicates.

    IPv6 link-local addresses are left out: they mean nothing without the other PC's zone. So is
    loopback, which leads every other PC to itself, unless there is nothing else.
    """
    known = [one for one in found if not _is_link_local_six(one.host)]
    usable = [one for one in known if _badness(one.host) < _LOOPBACK] or known
    usable.sort(key=lambda one: (_is_virtual(one.interface), _badness(one.host), one.host))
    return tuple(Address(host, port) for host in dict.fromkeys(one.host for one in usable))


def ranked(addresses: Iterable[Address], own: Iterable[str] = ()) -> tuple[Address, ...]:
    """Another PC's addresses in the order in which to dial them.

    `own` are this PC's addresses: what shares a network with them (/24, /64) is tried first.
    Loopback comes last, as it leads to whoever listens here.
    """
    near = {_network(host) for host in own} - {None}
    return tuple(
        sorted(
            dict.fromkeys(addresses),
            key=lambda one: (_badness(one.host), _network(one.host) not in near),
        )
    )


_LAST_LAN = 2
_LOOPBACK = 9


def _badness(host: str) -> int:
    """0 for a private IPv4 address of an office, more for what is less likely to be reached."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return 1  # a name that a person typed
    if address.is_loopback:
        return _LOOPBACK
    if address.is_link_local:
        return 5
    if address.version == 6:
        return 2 if not address.is_private else 1
    if address in _SHARED or address in _CONTAINER or address in _WSL:
        return 4
    return 0 if address.is_private else 1


def _is_virtual(interface: str) -> bool:
    name = interface.lower()
    return name.startswith(_VIRTUAL) or any(word in name for word in _VIRTUAL_WORDS)


def _is_link_local_six(host: str) -> bool:
    address = _parsed(host)
    return address is not None and address.version == 6 and address.is_link_local


def _network(host: str) -> str | None:
    address = _parsed(host)
    if address is None:
        return None
    length = 24 if address.version == 4 else 64
    return str(ipaddress.ip_network((address, length), strict=False))


def _version(host: str) -> int:
    address = _parsed(host)
    return address.version if address is not None else 0


def _parsed(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
