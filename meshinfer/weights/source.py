"""What a person typed after `meshinfer pull` -> where a model comes from. Pure.

    smollm2-135m                          the catalogue
    org/repo, org/repo@REVISION           the Hugging Face Hub, also as hf:NAME or a page's address
    org/repo/folder/model.Q4_K_M.gguf     one file of it
    ./folder, folder/model.gguf           a checkpoint on this PC

The text, the catalogue's names and a look at the disk enter; a Source leaves. Called by commands
and by the weights process.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from meshinfer.core.ids import ModelId
from meshinfer.errors import ModelNotFound, UsageError
from meshinfer.weights.plain_name import LONGEST, is_device, objection

Exists = Callable[[Path], bool]

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"(?:{_PART}/)?{_PART}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}", re.ASCII)
_PAGE = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/", re.IGNORECASE)
_PAGE_PARTS = re.compile(r"(?P<repo>[^/]+/[^/]+)/(?:tree|blob|resolve)/(?P<rest>.+)")
_DRIVE = re.compile(r"[A-Za-z]:")
_WAYS = "Give a name of `meshinfer models`, a repository as org/name, or a folder or .gguf file."


@dataclass(frozen=True, slots=True)
class CatalogueSource:
    model: ModelId

    @property
    def model_id(self) -> ModelId:
        return self.model


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hugging Face Hub. Without `revision` it is what "main" means today."""

    repository: str
    revision: str = ""
    file: str = ""  # a .gguf within it

    @property
    def model_id(self) -> ModelId:
        """Raises UsageError when nothing plain is left of the name."""
        return plain_id((self.file or self.repository).rsplit("/", 1)[-1])


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A folder, or a .gguf file (`file` is then empty). Absolute."""

    path: Path
    file: str = ""  # of several .gguf in a folder

    @property
    def model_id(self) -> ModelId:
        """Raises UsageError when nothing plain is left of the name."""
        return plain_id(self.file or self.path.name)


Source = CatalogueSource | HubSource | LocalSource


def read_source(
    text: str, known: Collection[str] = (), exists: Exists = Path.exists, revision: str = "",
    file: str = "",
) -> Source:  # fmt: skip
    """Raises UsageError (nonsense, or two meanings), ModelNotFound (nothing of that name).

    `known` are the catalogue's names; they win over a folder of the same name, which is written
    ./NAME. `revision` and `file` are what a person gave beside the text.
    """
    _refuse_nonsense(text)
    page = _PAGE.match(text)
    if page is not None:
        source: Source = _page(text[page.end() :])
    elif text in known:
        source = CatalogueSource(ModelId(text))
    elif text.startswith("hf:"):
        source = _repository(text.removeprefix("hf:"))
    else:
        source = _path_or_repository(text, exists)
    return _with_options(source, revision, file)


def plain_id(name: str) -> ModelId:
    """The id of a model whose source is called `name`: lower case, nothing but letters, digits
    and . _ + @ -. Raises UsageError when nothing is left."""
    flat = unicodedata.normalize("NFKD", name.strip()).encode("ascii", "ignore").decode().lower()
    flat = re.sub(r"[^a-z0-9._+@-]+", "-", flat.removesuffix(".gguf"))
    flat = re.sub(r"-{2,}", "-", flat).strip("-.")[:LONGEST].rstrip("-.")
    if objection(flat) is not None:
        raise UsageError(f"{name[:60]!r} makes no name for a model.", "Give one with --name.")
    return ModelId(flat)


def _refuse_nonsense(text: str) -> None:
    if not text.strip():
        raise UsageError("There is no model with an empty name.", _WAYS)
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text) or "\ufffd" in text:
        raise UsageError(f"{text[:60]!r} holds control characters.", _WAYS)
    if len(text) > 4096:
        raise UsageError(f"A source of {len(text)} characters is not read.", _WAYS)


def _path_or_repository(text: str, exists: Exists) -> Source:
    path = Path(text).expanduser()
    is_there = _is_there(path, exists)
    repository = _repository_or_none(text)
    is_file = text.lower().endswith(".gguf")
    if is_there and repository is not None and not is_file and not _looks_like_a_path(text):
        raise UsageError(
            f"'{text}' is a folder here, and may be a repository of the hub.",
            f"Write ./{text} for the folder, or hf:{text} for the repository.",
        )
    if is_there:
        return _local(path)
    if _looks_like_a_path(text):
        raise ModelNotFound(f"There is no file or folder {text[:200]!r} on this PC.", _WAYS)
    if repository is not None:
        return repository
    raise ModelNotFound(f"There is no model {text[:200]!r}.", _WAYS)


def _looks_like_a_path(text: str) -> bool:
    return (
        text.startswith((".", "/", "~", "\\"))
        or "\\" in text
        or _DRIVE.match(text) is not None
        or Path(text).is_absolute()
    )


def _is_there(path: Path, exists: Exists) -> bool:
    try:
        return exists(path)
    except (OSError, ValueError):  # names that this system cannot have
        return False


def _local(path: Path) -> LocalSource:
    whole = Path.cwd() / path if not path.is_absolute() else path
    if is_device(whole.name):
        raise UsageError(f"{whole.name!r} is a device of Windows, no checkpoint.", _WAYS)
    return LocalSource(whole.resolve() if ".." in whole.parts else whole)


def _repository_or_none(text: str) -> HubSource | None:
    """Only with an owner: a lone word is a typing error more often than an old repository."""
    try:
        return _repository(text) if "/" in text.partition("@")[0] else None
    except UsageError:
        return None


def _repository(text: str) -> HubSource:
    """`org/repo[@revision][/file.gguf]`. Raises UsageError."""
    before, at, behind = text.partition("@")
    parts = before.split("/")
    if at:
        revision, _, file = behind.partition("/")
        return _checked("/".join(parts), revision, file, text)
    return _checked("/".join(parts[:2]), "", "/".join(parts[2:]), text)


def _checked(repository: str, revision: str, file: str, text: str) -> HubSource:
    if not _REPOSITORY.fullmatch(repository) or "--" in repository or ".." in repository:
        raise UsageError(f"{text[:200]!r} is no name of a repository.", "Write it as org/name.")
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(f"{revision[:60]!r} is no revision.", "Give a branch, tag or commit.")
    if file:
        _check_file(file)
    return HubSource(repository, revision, file)


def _check_file(file: str) -> None:
    parts = file.split("/")
    if "\\" in file or any(part in ("", ".", "..") for part in parts) or _DRIVE.match(file):
        raise UsageError(f"{file[:200]!r} is no file of a repository.", "Give its path within it.")
    if not file.lower().endswith(".gguf"):
        raise UsageError(
            f"{file[:200]!r} is no GGUF file.",
            "Only one of several GGUF files is named; other models are taken as a whole.",
        )


def _page(rest: str) -> HubSource:
    """The address of a repository's page or file, as a browser shows it."""
    rest = rest.split("?")[0].split("#")[0].strip("/")
    found = _PAGE_PARTS.fullmatch(rest)
    if "/" not in rest:
        raise UsageError(f"{rest[:60]!r} is the page of an owner.", "Give a repository's page.")
    if found is None:
        return _checked(rest, "", "", rest)
    revision, _, file = found["rest"].partition("/")
    return _checked(found["repo"], revision, file, rest)


def _with_options(source: Source, revision: str, file: str) -> Source:
    """What --revision and --file add. Raises UsageError when they fit no such source."""
    if revision and not isinstance(source, HubSource):
        raise UsageError("Only a repository of the hub has revisions.", "Leave --revision off.")
    if file and isinstance(source, CatalogueSource):
        raise UsageError("A model of the catalogue is one file already.", "Leave --file off.")
    if isinstance(source, HubSource):
        for given, had, name in ((revision, source.revision, "revision"),
                                 (file, source.file, "file")):  # fmt: skip
            if given and had and given != had:
                raise UsageError(f"Two different {name}s are given: {had} and {given}.")
        return _checked(
            source.repository, revision or source.revision, file or source.file, source.repository
        )
    if file and isinstance(source, LocalSource):
        _check_file(file)
        return replace(source, file=file)
    return source
