"""The store of this PC's stages, as its owner set it up. Opened alike by the agent and by its
weights process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshinfer.node.settings import Settings
from meshinfer.node.state_folder import StateFolder
from meshinfer.weights.store import Store, StoreLimits
from meshinfer.wire.child import StorePlace


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """Where stages lie and how much they may take there."""

    root: Path
    read_only: tuple[Path, ...] = ()
    quota_bytes: int | None = None

    @classmethod
    def of(cls, settings: Settings, folder: StateFolder) -> StoreChoice:
        root = settings.store or folder.store
        return cls(root, settings.read_only_stores, settings.store_limit)

    @classmethod
    def told(cls, place: StorePlace) -> StoreChoice:
        return cls(Path(place.root), tuple(map(Path, place.read_only)), place.quota_bytes or None)

    def tell(self) -> StorePlace:
        """For a child process."""
        return StorePlace(str(self.root), tuple(map(str, self.read_only)), self.quota_bytes or 0)

    def open(self) -> Store:
        return Store(self.root, self.read_only, StoreLimits(self.quota_bytes))
