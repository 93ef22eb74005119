"""Which ports an agent takes, and what it says when it cannot have them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from meshinfer.core.fleet import Address
from meshinfer.errors import UsageError
from meshinfer.node.ports import choose_ports, is_free
from meshinfer.node.settings import AGENT_PORT, API_PORT, Settings


def settings(**values: object) -> Settings:
    return Settings(state_dir=Path("state"), name="pc", **values)  # type: ignore[arg-type]


def ports(taken: set[int], **values: object) -> list[int]:
    chosen = choose_ports(settings(**values), lambda address: address.port not in taken)
    return [address.port for address in chosen]


def test_defaults() -> None:
    assert ports(set()) == [AGENT_PORT, AGENT_PORT + 1, API_PORT]


@pytest.mark.parametrize("taken", [{AGENT_PORT}, {AGENT_PORT + 1}])
def test_a_default_steps_aside_as_a_pair(taken: set[int]) -> None:
    assert ports(taken) == [AGENT_PORT + 2, AGENT_PORT + 3, API_PORT]


def test_a_default_api_port_steps_aside() -> None:
    assert ports({API_PORT, API_PORT + 1})[2] == API_PORT + 2


@pytest.mark.parametrize(("taken", "named"), [({7000}, "7000"), ({7001}, "7001")])
def test_a_port_that_was_asked_for_is_used_or_refused(taken: set[int], named: str) -> None:
    with pytest.raises(UsageError, match=f"Port {named} is taken.*--listen"):
        ports(taken, listen_port=7000)
    with pytest.raises(UsageError, match=r"Port 8000 is taken.*--api"):
        ports({8000}, api_port=8000)


def test_a_real_port_in_use_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(Address("127.0.0.1", server.getsockname()[1]))


def test_an_address_of_another_pc_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="not an address of this PC"):
        is_free(Address("192.0.2.77", 1234))
