"""What plans need of signatures: the leader seals manifests, every PC of the plan checks them."""

from __future__ import annotations

from typing import Protocol

from meshinfer.core.ids import Digest, NodeId
from meshinfer.core.seal import Seal


class Seals(Protocol):
    """link.seal.Sealer implements it."""

    def seal(self, digest: Digest) -> Seal: ...

    def signer(self, digest: Digest, seal: Seal) -> NodeId:
        """Raises TrustRefused unless a member of the fleet vouches for the manifest."""
        ...
