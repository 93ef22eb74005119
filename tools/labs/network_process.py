"""The network of a lab as a process of its own, so that a bench does not slow it down.

    python -m tools.labs.network_process ORDER

ORDER is JSON: `method`, `quality`, `seed`, `listen` and `api` (PC -> port). One JSON command a line
comes in and is answered with one: `{"set": [1, 2], "quality": {...}}`, `{"agents": {"1": 77}}`,
`{"abort": [1, 2]}`. When its input ends, whatever the reason, it removes what it made.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from typing import Any

from meshinfer.errors import MeshInferError, UsageError
from tools.labs.line import Lines
from tools.labs.proxy import ProxyNetwork
from tools.labs.quality import SWITCH, LinkQuality
from tools.labs.switch import BACKLOG_S, SwitchNetwork

Network = ProxyNetwork | SwitchNetwork


def network_of(order: dict[str, Any]) -> Network:
    usual, seed = LinkQuality(**order["quality"]), int(order["seed"])
    if order["method"] == SWITCH:
        return SwitchNetwork(Lines(usual, seed, BACKLOG_S), _ports(order["api"]))
    return ProxyNetwork(Lines(usual, seed), _ports(order["listen"]))


def _ports(found: dict[str, int]) -> dict[int, int]:
    return {int(pc): port for pc, port in found.items()}


async def obey(network: Network, command: dict[str, Any]) -> None:
    """Raises UsageError for what this network cannot do."""
    if "set" in command:
        source, target = command["set"]
        network.set(source, target, LinkQuality(**command["quality"]))
    elif isinstance(network, ProxyNetwork) and "agents" in command:
        network.agents.update(_ports(command["agents"]))
    elif isinstance(network, ProxyNetwork) and "abort" in command:
        await network.abort(*command["abort"])
    else:
        raise UsageError(f"This network does not know {', '.join(command)}.")


async def run(order: dict[str, Any]) -> None:
    """Until standard input ends."""
    network = network_of(order)
    try:
        await network.start()
        names = network.names if isinstance(network, SwitchNetwork) else {}
        tell({"up": True, "namespaces": names})
        lines = _input()
        while line := await lines.get():
            try:
                await obey(network, json.loads(line))
                tell({})
            except MeshInferError as error:
                tell({"error": str(error)})
    except (MeshInferError, OSError) as error:
        tell({"error": str(error)})
    finally:
        await network.close()


def tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _input() -> asyncio.Queue[str]:
    """Lines of standard input, an empty one at its end."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    return lines


if __name__ == "__main__":
    # Ctrl-C reaches the whole group of a terminal; the lab ends its agents first, then this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(run(json.loads(sys.argv[1])))
