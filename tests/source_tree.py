"""This repository's files, for the tests that read them instead of running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "meshinfer"

_LEFT_OUT = {".git", ".venv", "dist", "build", "node_modules", "__pycache__"}
_LARGEST_TEXT = 1_000_000  # bytes; beyond it a file is data


def relative(path: Path) -> str:
    """With forward slashes on every system."""
    return path.relative_to(ROOT).as_posix()


def sources(*folders: str) -> list[Path]:
    """Python files below these folders of the repository, in order."""
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def texts() -> Iterator[tuple[str, str]]:
    """(name, text) of every text file that belongs to the repository."""
    for path in sorted(_files(ROOT)):
        if path.stat().st_size > _LARGEST_TEXT:
            continue
        try:
            yield relative(path), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir():
            if not _is_left_out(path.name):
                yield from _files(path)
        elif path.is_file():
            yield path


def _is_left_out(name: str) -> bool:
    """Caches and environments; `.ci` and `.github` belong to us."""
    hidden = name.startswith(".") and name not in (".ci", ".github")
    return hidden or name in _LEFT_OUT or name.endswith(".egg-info")
