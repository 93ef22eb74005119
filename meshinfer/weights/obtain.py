"""The files of a source, on this PC's disk: fetched, or where they lie already.

A Source enters, Obtained leaves. Called by `prepare` under the model's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshinfer.core.ids import ModelId
from meshinfer.weights import hub_fetch, wheels
from meshinfer.weights.catalogue import Catalogue, Entry
from meshinfer.weights.checkpoint import Checkpoint, check, look
from meshinfer.weights.hub import Hub
from meshinfer.weights.progress import Progress, Tell
from meshinfer.weights.selection import Kind, SourceFile
from meshinfer.weights.source import CatalogueSource, HubSource, LocalSource, Source


@dataclass(frozen=True, slots=True)
class Obtained:
    checkpoint: Checkpoint
    revision: str = ""  # commit of the hub's repository

    @property
    def key(self) -> list[list[str]]:
        """What tells these files from others, without reading them whole."""
        return [[file.name, str(file.size), self._mark(file)] for file in self.checkpoint.files]

    def _mark(self, file: SourceFile) -> str:
        folder = self.checkpoint.path
        path = folder / file.name if folder.is_dir() else folder.parent / file.name
        return file.sha256 or file.git_blob or str(path.stat().st_mtime_ns)


def label(source: Source) -> str:
    """What a description calls a source. Raises ModelNotFound (not in the catalogue)."""
    match source:
        case CatalogueSource(model):
            entry = Catalogue.load().find(model)
            if entry.kind == "wheels":
                return f"wheels {entry.packages[0]}"
            return label(_of_hub(entry))
        case HubSource(repository, revision, file):
            return f"hub {repository}{'@' if revision else ''}{revision}{'/' if file else ''}{file}"
        case LocalSource(path, file):
            return f"local {path}{' ' if file else ''}{file}"


def same_label(one: str, other: str) -> bool:
    """Another version of the same package is the same source: the catalogue moved on."""
    return one.partition("==")[0] == other.partition("==")[0]


def obtain(
    source: Source,
    folder: Path,
    progress: Tell,
    export: bool,
    allow: Callable[[Kind], None],
    hub: Hub,
) -> Obtained:
    """Have the files, whole and checked; what is fetched lies in `folder`. `export` and `allow` as
    in `hub_fetch.fetch`. Blocks. Raises what the ways of fetching and the checks raise."""
    found = _files(source, folder, progress, export, allow, hub)
    if not isinstance(source, LocalSource):
        progress(Progress("check", 0, 0))
        check(found.checkpoint)
    return found


def changed_since(source: Source, seconds: int) -> bool:
    """Whether a local source was written to after a moment (seconds since 1970)."""
    if not isinstance(source, LocalSource):
        return False
    paths = [source.path]
    if source.path.is_dir():
        paths = [path for path in source.path.iterdir() if path.is_file()]
    return any(path.stat().st_mtime > seconds + 1 for path in paths)


def catalogue_source(model: str) -> CatalogueSource:
    """Raises ModelNotFound that lists what there is."""
    return CatalogueSource(Catalogue.load().find(ModelId(model)).model)


def _files(
    source: Source,
    folder: Path,
    progress: Tell,
    export: bool,
    allow: Callable[[Kind], None],
    hub: Hub,
) -> Obtained:
    match source:
        case LocalSource(path, file):
            progress(Progress("check", 0, 0))
            found = look(path, file, export)
            check(found)  # what is damaged is told first: it lies here, and looking costs little
            allow(found.kind)
            return Obtained(found)
        case HubSource():
            got = hub_fetch.fetch(source, folder, progress, export, allow, hub=hub)
            return Obtained(got.checkpoint, got.commit)
        case CatalogueSource(model):
            return _of_catalogue(Catalogue.load().find(model), folder, progress, export, allow, hub)


def _of_catalogue(
    entry: Entry,
    folder: Path,
    progress: Tell,
    export: bool,
    allow: Callable[[Kind], None],
    hub: Hub,
) -> Obtained:
    if entry.kind == "hub":
        source, digest = _of_hub(entry), entry.digest
        got = hub_fetch.fetch(source, folder, progress, export, allow, digest, hub)
        return Obtained(got.checkpoint, got.commit)
    allow(Kind.GGUF)
    path = wheels.fetch(entry, folder, progress)
    file = SourceFile(path.name, entry.size, entry.digest)
    return Obtained(Checkpoint(Kind.GGUF, path, (file,)))


def _of_hub(entry: Entry) -> HubSource:
    return HubSource(entry.repository, entry.revision, entry.file)
