"""What all transfers of an agent share: made by the node, given to the server and every pull."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from meshinfer.core.ids import NodeId
from meshinfer.weights.incoming import Incoming
from meshinfer.weights.piece_choice import Random
from meshinfer.weights.store import Store
from meshinfer.weights.throttle import UploadLimit

BadPeer = Callable[[NodeId, str], None]
"""Hears that a PC sent bytes that are not the piece, and what was said about it."""


def unheard(node: NodeId, why: str) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Files are read, hashed and written on `executor`."""

    store: Store
    executor: Executor
    upload: UploadLimit = field(default_factory=UploadLimit)
    on_bad_peer: BadPeer = unheard
    random: Random = random.randrange
    incoming: Incoming = field(default_factory=Incoming)
