"""Two fleets on disk: one with a founder and a member, one of strangers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from meshinfer.link.identity import Identity, found, join


@dataclass(frozen=True)
class Fleets:
    founder: Identity
    member: Identity
    stranger: Identity


@pytest.fixture
def fleets(tmp_path: Path) -> Fleets:
    founder = found(tmp_path / "founder")
    assert founder.code is not None
    return Fleets(founder, join(tmp_path / "member", founder.code), found(tmp_path / "stranger"))
