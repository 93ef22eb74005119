"""The Hugging Face Hub through huggingface_hub: what a repository holds, and what of it lies in
the hub's cache on this PC already.

A repository's name enters, a Listing leaves. Called by `hub_fetch`. The library is imported when
it is needed: commands that do not pull start without it. Its environment counts: HF_ENDPOINT,
HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshinfer.errors import ModelNotFound, TimedOut
from meshinfer.weights.disk import disk_errors
from meshinfer.weights.download import Persistence
from meshinfer.weights.hub_errors import hub_errors, offline, unreadable
from meshinfer.weights.selection import SourceFile, refuse_hostile

DEFAULT_REVISION = "main"
_PATIENCE_S = 15.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one commit. From the cache: those that lie there."""

    repository: str
    commit: str
    files: tuple[SourceFile, ...]
    from_cache: bool


@dataclass(frozen=True, slots=True)
class Hub:
    """Where the hub is and what this PC may do there. What is None, and an empty `endpoint`, are
    the environment's; an empty `token` is none."""

    endpoint: str = ""
    cache: Path | None = None
    offline: bool | None = None
    token: str | None = None
    persistence: Persistence = Persistence()
    most_http_bytes: int = 50_000_000_000
    """The hub gives larger files only in its own way (constants.MAX_HTTP_DOWNLOAD_SIZE)."""

    def listing(self, repository: str, revision: str = "") -> Listing:
        """Of the cache when this PC is offline or the hub cannot be reached. Raises
        ModelNotFound, TimedOut, ShardCorrupt (names that leave a folder)."""
        if self.is_offline:
            found = self._cached_listing(repository, revision)
            if found is None:
                raise offline(repository)
            return found
        try:
            return self._asked(repository, revision)
        except TimedOut:
            found = self._cached_listing(repository, revision)
            if found is None:
                raise
            return found

    @property
    def is_offline(self) -> bool:
        from huggingface_hub import constants

        return bool(constants.HF_HUB_OFFLINE) if self.offline is None else self.offline

    def cached(self, listing: Listing, name: str) -> Path | None:
        """The file in the hub's cache, when it is there."""
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(
            listing.repository, name, cache_dir=self._cache, revision=listing.commit
        )
        return Path(path) if isinstance(path, str) else None

    def url(self, listing: Listing, name: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(
            listing.repository, name, revision=listing.commit, endpoint=self.endpoint or None
        )

    def secret_headers(self) -> Mapping[str, str]:
        """The token, if this PC has one, as a request carries it. For nothing else."""
        from huggingface_hub import constants, get_token

        token = self.token
        if token is None and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
            token = get_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def download(self, listing: Listing, name: str, told: Callable[[int], None]) -> Path:
        """Have a file in the hub's cache, by the library's own transport: for those that plain
        HTTP does not give. `told` hears bytes. Raises as `listing` does, and DiskFull."""
        from huggingface_hub import hf_hub_download

        with hub_errors(listing.repository, listing.commit), disk_errors(self._cache):
            path = hf_hub_download(
                listing.repository,
                name,
                revision=listing.commit,
                cache_dir=self._cache,
                endpoint=self.endpoint or None,
                token=None if self.token is None else self.token or False,
                tqdm_class=_bar_that_tells(told),
            )
        return Path(path)

    def _asked(self, repository: str, revision: str) -> Listing:
        from huggingface_hub import HfApi

        token = None if self.token is None else self.token or False
        api = HfApi(endpoint=self.endpoint or None, token=token)
        try:
            with hub_errors(repository, revision):
                info = api.model_info(
                    repository, revision=revision or None, files_metadata=True, timeout=_PATIENCE_S
                )
            siblings: list[Any] = info.siblings or []
            files = tuple(_file(one) for one in siblings)
            commit = str(info.sha)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise unreadable(repository, type(error).__name__) from None
        if not _SHA1.fullmatch(commit):
            raise TimedOut(f"The hub names no commit for {repository}.", "Check HF_ENDPOINT.")
        for file in files:
            refuse_hostile(file.name)
        return Listing(repository, commit, files, from_cache=False)

    def _cached_listing(self, repository: str, revision: str) -> Listing | None:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound

        try:
            found = scan_cache_dir(self._cache)
        except (CacheNotFound, ValueError, OSError):
            return None
        wanted = revision or DEFAULT_REVISION
        for repo in found.repos:
            if repo.repo_type != "model" or repo.repo_id != repository:
                continue
            for one in repo.revisions:
                if wanted in one.refs or wanted == one.commit_hash:
                    files = tuple(_cached_file(one.snapshot_path, file) for file in one.files)
                    return Listing(repository, one.commit_hash, files, from_cache=True)
        return None

    @property
    def _cache(self) -> Path:
        from huggingface_hub import constants

        return self.cache or Path(constants.HF_HUB_CACHE)


def _bar_that_tells(told: Callable[[int], None]) -> Any:
    """The library tells its progress to a progress bar only: this one draws nothing."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)
            options |= {"file": io.StringIO(), "disable": False}
            super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            told(int(self.n))
            return shown

    return Bar


def _file(sibling: Any) -> SourceFile:
    """Raises TypeError for an answer without sizes or digests."""
    lfs = sibling.lfs
    size = lfs.size if lfs is not None else sibling.size
    if type(size) is not int or size < 0 or not isinstance(sibling.rfilename, str):
        raise TypeError("a file without a size")
    digest = str(lfs.sha256) if lfs is not None else ""
    blob = str(sibling.blob_id or "") if lfs is None else ""
    if (lfs is not None and not _SHA256.fullmatch(digest)) or (blob and not _SHA1.fullmatch(blob)):
        raise TypeError("a file without a digest")
    return SourceFile(sibling.rfilename, size, digest, blob)


def _cached_file(snapshot: Path, file: Any) -> SourceFile:
    """The cache calls each blob by its digest; where links are not possible it does not."""
    name = Path(file.file_path).relative_to(snapshot).as_posix()
    blob = Path(file.blob_path).name
    return SourceFile(
        name,
        int(file.size_on_disk),
        blob if _SHA256.fullmatch(blob) else "",
        blob if _SHA1.fullmatch(blob) else "",
    )


def not_complete(listing: Listing, name: str) -> ModelNotFound:
    return ModelNotFound(
        f"{name} of {listing.repository} is not in the hub's cache on this PC, and the hub is not "
        "reached.",
        "Try again with a network (and without HF_HUB_OFFLINE).",
    )
