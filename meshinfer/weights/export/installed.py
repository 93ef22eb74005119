"""Whether the extra `export` is installed, and which versions of it. Nothing heavy is imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from meshinfer.errors import UsageError

PACKAGES = ("torch", "transformers", "optimum-intel", "nncf", "openvino-tokenizers", "openvino")
INSTALL = "pip install 'meshinfer-fleet[export]'"


def export_versions(packages: tuple[str, ...] = PACKAGES) -> str:
    """Names and versions of what makes the graph and its weights. Raises UsageError saying what to
    install."""
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package).partition('+')[0]}")
        except PackageNotFoundError:
            raise UsageError(
                f"Exporting a safetensors checkpoint needs {package}, which is not installed.",
                f"Install the export extra: {INSTALL}",
            ) from None
    return ", ".join(found)
