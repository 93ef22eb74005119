"""Network namespaces with one Ethernet card each, whose other end is a file of this process.

Linux, root and `ip` (iproute2) are needed. Names begin with `mlab` and the process id, so that
labs do not meet and only what this one made is removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

from meshinfer.errors import UsageError

TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000  # Ethernet frames, without a header in front
_CLONE_NEWNET = 0x40000000
_OTHER = "Use --method proxy, which needs nothing, or --method link."


def why_not() -> str:
    """What is missing for namespaces here; empty when nothing is."""
    if sys.platform != "linux":
        return "Network namespaces are a thing of Linux."
    if os.geteuid() != 0:
        return "Network namespaces need root."
    if shutil.which("ip") is None:
        return "Network namespaces need `ip` of iproute2."
    if not Path(TUN).exists():
        return f"There is no {TUN} here."
    return ""


def check() -> None:
    """Raises UsageError where namespaces cannot be made."""
    reason = why_not()
    if reason:
        raise UsageError(reason, _OTHER)


def host(pc: int) -> str:
    return f"10.78.0.{pc}"


class Namespace:
    """One PC's network. `card` is the file of its Ethernet card: frames in, frames out."""

    def __init__(self, pc: int) -> None:
        """Raises UsageError when the system refuses."""
        self.pc = pc
        self.name = f"mlab{os.getpid()}-{pc}"
        self.card = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        self._made = False
        try:
            self._make(f"ml{os.getpid()}p{pc}"[:15])
        except BaseException:
            self.remove()
            raise

    def _make(self, tap: str) -> None:
        import fcntl  # not on Windows

        request = struct.pack("16sH", tap.encode(), _IFF_TAP | _IFF_NO_PI)
        fcntl.ioctl(self.card, _TUNSETIFF, request)
        _ip("netns", "add", self.name)
        self._made = True
        _ip("link", "set", tap, "netns", self.name)
        for words in (
            ("link", "set", tap, "name", "eth0"),
            ("addr", "add", f"{host(self.pc)}/24", "dev", "eth0"),
            ("link", "set", "lo", "up"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "224.0.0.0/4", "dev", "eth0"),  # multicast, for mDNS
        ):
            _ip("-n", self.name, *words)

    def remove(self) -> None:
        """With the processes in it, which would keep it alive. Idempotent; never raises, so that
        the others are removed too."""
        if self.card >= 0:
            os.close(self.card)
            self.card = -1
        if not self._made:
            return
        self._made = False
        try:
            for word in _ip("netns", "pids", self.name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(word), signal.SIGKILL)
            _ip("netns", "del", self.name)
        except UsageError as error:
            print(f"the namespace {self.name} is still there: {error}", file=sys.stderr)


def entered(name: str) -> None:
    """Move this thread into a namespace: its new sockets are of that PC. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}", "rb") as file:
        if library.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {name}")


def _ip(*words: str) -> str:
    """Raises UsageError with what `ip` said."""
    done = subprocess.run(("ip", *words), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UsageError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}", _OTHER)
    return done.stdout
