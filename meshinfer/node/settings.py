"""What a person may decide about an agent. Only node and cli see it: parts get own options."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from meshinfer.core.fleet import Address
from meshinfer.core.ids import ModelId

AGENT_PORT = 9470
"""Other PCs reach the agent here; its stage hosts listen on the port after it."""

API_PORT = 9480
PORT_ATTEMPTS = 20
"""Ports that are only defaults step aside, two by two, when another agent of this PC has them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One agent. A port that is None was not asked for: the default, or the next free one."""

    state_dir: Path
    name: str
    listen_host: str = "0.0.0.0"
    listen_port: int | None = None
    api_host: str = "127.0.0.1"
    api_port: int | None = None
    model: ModelId | None = None
    model_source: str = ""  # where to get it, as a person writes it; empty: the catalogue
    peers: tuple[Address, ...] = ()
    advertise: tuple[Address, ...] = ()
    mdns: bool = True
    memory_limit: int | None = None  # bytes that stages may use; None: free memory less a reserve
    device: str = "auto"
    threads: int = 0  # 0: OpenVINO's choice
    stages: int | None = None  # force a pipeline of so many
    precision: str = "auto"
    deterministic: bool = False
    configuration: str = "auto"  # of the engine: measured here, or one in its text form
    trace: Path | None = None  # where a leader writes what its steps did, for Perfetto
    store: Path | None = None  # where stages lie; None: in the state folder
    read_only_stores: tuple[Path, ...] = ()
    store_limit: int | None = None  # bytes that stages may take on the disk
    upload_limit: int | None = None  # bytes a second of pieces to other PCs
    draft: str = "auto"  # "auto", "none", "off" or the name of a model that guesses ahead
    hop_delay_s: float = 0.0  # added to what other PCs send over the ring: slow links for trials
    api_key: str | None = None  # from the environment or a file, never from argv


def default_state_dir() -> Path:
    """`MESHINFER_STATE_DIR`, else where this system keeps the state of programs."""
    named = os.environ.get("MESHINFER_STATE_DIR")
    if named:
        return Path(named)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "meshinfer"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "meshinfer"
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "meshinfer"


def default_name() -> str:
    """This PC's host name without its domain."""
    return platform.node().split(".")[0] or "pc"


def read_api_key(state_dir: Path) -> str | None:
    """The key that clients must send: `MESHINFER_API_KEY`, else the file `api.key`."""
    from_environment = os.environ.get("MESHINFER_API_KEY", "").strip()
    if from_environment:
        return from_environment
    file = state_dir / "api.key"
    return (file.read_text(encoding="utf-8").strip() or None) if file.is_file() else None
