"""A child for test_child: floods its agent with news, has a child of its own, never ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from meshinfer.node.child import ParentPipe
from meshinfer.wire.child import WeightsNews


async def run() -> None:
    pipe = ParentPipe()
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    await pipe.receive()
    done = grandchild.pid
    while True:
        await asyncio.to_thread(pipe.send, WeightsNews("flood", done, 0))


if __name__ == "__main__":
    asyncio.run(run())
