"""What is thought of one PC that is asked for pieces: how often it failed, how often it lied, and
whether it is worth another try. Lies count for as long as the pull lasts, whatever link they came
on. Used by `weights.piece_source`.
"""

from __future__ import annotations

import logging

from meshinfer.core.ids import NodeId, short
from meshinfer.errors import (
    MeshInferError,
    ProtocolViolation,
    ShardCorrupt,
    TrustRefused,
    VersionMismatch,
)
from meshinfer.weights.exchange import BadPeer
from meshinfer.weights.patience import Patience

_HOPELESS = (ShardCorrupt, TrustRefused, VersionMismatch)
_log = logging.getLogger(__name__)


class Reputation:
    """`failures` are those in a row; `on_bad_peer` hears of every wrong answer."""

    def __init__(self, patience: Patience, on_bad_peer: BadPeer) -> None:
        self._patience = patience
        self._on_bad_peer = on_bad_peer
        self._wrong = 0
        self.failures = 0

    @property
    def is_liar(self) -> bool:
        return self._wrong >= self._patience.wrong_answers

    def lied(self, peer: NodeId, why: str) -> None:
        """It sent what it may not, or bytes that are not the piece."""
        self._wrong += 1
        _log.warning("PC %s, wrong answer %d: %s", short(peer), self._wrong, why)
        self._on_bad_peer(peer, why)

    def gave(self) -> None:
        """A piece that was right."""
        self.failures = 0

    def failed(self, peer: NodeId, error: MeshInferError) -> MeshInferError | None:
        """Why it is given up; None while it is worth another try."""
        self.failures += 1
        if isinstance(error, ProtocolViolation):
            self.lied(peer, error.cause)
            if self.is_liar:
                return error
        if self.is_liar:
            return self.sentence(peer)
        if isinstance(error, _HOPELESS) or self.failures >= self._patience.failures:
            return error
        return None

    def sentence(self, peer: NodeId) -> ShardCorrupt:
        return ShardCorrupt(
            f"PC {short(peer)} sent {self._wrong} wrong answers instead of pieces.",
            "Have that PC's disk and memory checked.",
        )
