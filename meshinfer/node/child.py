"""A child process that talks to its agent in registered messages over its pipes.

Parent side: `ChildProcess`. Child side: `ParentPipe`. Each frame is preceded by its length (u32,
little endian). The end of the child's standard input means that the agent is gone: the child ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
import sys
import threading
import time
from collections import deque
from typing import Any, BinaryIO

import psutil

from meshinfer.errors import PeerLost, ProtocolViolation, StageFailed
from meshinfer.wire import registry

_LENGTH = struct.Struct("<I")
_LIMITS = registry.welcome("child")
_LARGEST = registry.largest_frame(_LIMITS.values())
_STOP_GRACE_S = 3.0
_ORPHAN_GRACE_S = 5.0
_KEPT_LINES = 12

log = logging.getLogger(__name__)


class ChildProcess:
    """Owns one process and the task that reads its standard error.

    Use as an async context manager: leaving it ends the process, politely, then by force.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._errors: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)

    async def __aenter__(self) -> ChildProcess:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", self._module, stdin=pipe, stdout=pipe, stderr=pipe
        )
        self._errors = asyncio.create_task(self._relay_errors(self._process))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def send(self, message: object) -> None:
        """Raises StageFailed when the child is gone."""
        assert self._process is not None
        assert self._process.stdin is not None
        data = registry.pack(message)
        try:
            self._process.stdin.write(_LENGTH.pack(len(data)))
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise StageFailed(await self._epitaph()) from error

    async def receive(self) -> Any:
        """The child's next message. Raises StageFailed, with its last words, when it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            (length,) = _LENGTH.unpack(await self._process.stdout.readexactly(_LENGTH.size))
            if length > _LARGEST:
                raise ProtocolViolation(f"a child announces {length} bytes")
            data = await self._process.stdout.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise StageFailed(await self._epitaph()) from error
        message, _ = registry.unpack(data, _LIMITS)
        return message

    async def stop(self) -> None:
        """Close its input, wait, then kill. Idempotent; always reaps the process."""
        process, errors = self._process, self._errors
        if process is None or errors is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        assert process.stdout is not None
        # A pipe that nobody reads is never seen to end, and `wait` waits for its end.
        unread = asyncio.create_task(process.stdout.read())
        try:
            async with asyncio.timeout(_STOP_GRACE_S):
                await process.wait()
        except TimeoutError:
            await asyncio.to_thread(kill_tree, process.pid)
            await process.wait()
        except asyncio.CancelledError:
            kill_tree(process.pid)
            raise
        finally:
            await asyncio.wait([unread])
        await errors

    async def _relay_errors(self, process: asyncio.subprocess.Process) -> None:
        """Its standard error becomes our log: debug level, the last lines kept for an epitaph."""
        assert process.stderr is not None
        while line := await _line(process.stderr):
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            log.debug("child %d: %s", process.pid, text)

    async def _epitaph(self) -> str:
        assert self._process is not None
        code: int | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_GRACE_S):
                code = await self._process.wait()
        words = next((line for line in reversed(self._last_lines) if line.strip()), "")
        ending = f"with code {code}" if code is not None else "without an exit"
        return f"A process of the engine ended {ending}{': ' + words if words else '.'}"


def kill_tree(pid: int, itself: bool = True) -> None:
    """End a process and all below it by force. A grandchild (pip, a driver's helper) would go on
    holding the pipes, and asyncio's `wait` waits for their end too."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for below in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                below.kill()
        if itself:
            process.kill()


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or what there is of an overlong one; empty at the end."""
    try:
        return await stream.readline()
    except ValueError:  # a line beyond the reader's limit; the reader has dropped it
        return b"(an overlong line)\n"


class ParentPipe:
    """The child's end. Whatever libraries print on standard output goes to standard error.

    A daemon thread reads: asyncio cannot wait for standard input on every system.
    """

    def __init__(self) -> None:
        self._out: BinaryIO = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        # Unbuffered: the interpreter cannot end while a thread holds a buffered reader's lock.
        self._in: BinaryIO = os.fdopen(os.dup(0), "rb", buffering=0)
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        threading.Thread(target=self._read, name="parent pipe", daemon=True).start()

    def send(self, message: object) -> None:
        """Write one message; from any thread. A vanished parent is noticed by `receive`."""
        data = registry.pack(message)
        with self._lock, contextlib.suppress(OSError):
            self._out.write(_LENGTH.pack(len(data)) + bytes(data))

    async def receive(self) -> Any:
        """The parent's next message. Raises PeerLost when the parent is gone."""
        message = await self._messages.get()
        if message is None:
            self._messages.put_nowait(None)  # stay gone
            raise PeerLost("The agent ended.")
        return message

    def _exactly(self, count: int) -> bytes:
        """`count` bytes, fewer at the end of the stream."""
        data = b""
        while len(data) < count and (more := self._in.read(count - len(data))):
            data += more
        return data

    async def closed(self) -> None:
        """Wait for the end of the parent. Raises PeerLost then; never returns."""
        while True:
            await self.receive()

    def _read(self) -> None:
        try:
            while len(head := self._exactly(_LENGTH.size)) == _LENGTH.size:
                data = self._exactly(min(_LENGTH.unpack(head)[0], _LARGEST))
                message, _ = registry.unpack(data, _LIMITS)
                self._loop.call_soon_threadsafe(self._messages.put_nowait, message)
        except (OSError, ValueError, ProtocolViolation) as error:
            log.warning("parent pipe: %s", error)
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._messages.put_nowait, None)
        time.sleep(_ORPHAN_GRACE_S)
        # Still here: something native (a compile, a driver) cannot be cancelled, and nobody is left
        # who could kill this process.
        kill_tree(os.getpid(), itself=False)
        os._exit(1)
