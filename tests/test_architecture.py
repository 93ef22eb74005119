"""Who may import whom, and what nobody may use. Read from the source, functions included."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.source_tree import PACKAGE, ROOT, relative, sources, tree_of

EVERYTHING = "meshinfer.*"

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "core": (),
    "wire": (),
    "link": ("meshinfer.wire.*",),
    "mesh": ("meshinfer.wire.*", "meshinfer.link.base"),
    "weights": ("meshinfer.wire.*", "meshinfer.link.base"),
    "engine": (),
    "serve": (
        "meshinfer.wire.*",
        "meshinfer.link.base",
        "meshinfer.engine.stage",
        "meshinfer.engine.grammar",
        "meshinfer.engine.histories",
        "meshinfer.engine.sampling",
        "meshinfer.engine.tokenizer",
        "meshinfer.engine.detokenizer",
    ),
    "api": (),
    "node": (EVERYTHING,),
    "cli": (
        "meshinfer.node.*",
        "meshinfer.weights.*",
        "meshinfer.link.identity",
        "meshinfer.link.join_code",
    ),
}
"""Beside core, errors and itself. The lanes meet in node and nowhere else."""

THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "numpy": (
        "wire/tensor.py",
        "wire/cache_census.py",
        "wire/draft.py",
        "wire/step_payload.py",
        "engine/*",
        "serve/*",
        "weights/*",
        "node/*",
    ),
    "msgpack": ("wire/codec.py",),
    "zeroconf": ("mesh/discovery.py",),
    "ifaddr": ("mesh/*",),
    "psutil": (
        "mesh/*",
        "node/*",
        "engine/grammar_check.py",
        "weights/template_check.py",
        "weights/export/*",
    ),
    "llguidance": ("engine/grammar.py", "engine/grammar_source.py", "engine/grammar_trial.py"),
    "aiohttp": ("link/*", "api/*"),
    "yarl": ("link/*",),
    "cryptography": ("link/*",),
    "openvino": ("engine/*", "weights/*", "mesh/device_probe.py"),
    "openvino_genai": ("engine/*", "weights/*"),
    "openvino_tokenizers": ("engine/*", "weights/*"),
    "gguf": ("weights/*",),
    "nncf": ("weights/export/*",),
    "torch": ("weights/export/*",),
    "transformers": ("weights/export/*",),
    "optimum": ("weights/export/*",),
    "huggingface_hub": ("weights/hub.py", "weights/hub_errors.py"),
}
"""The files behind which each dependency stays; what is not listed may not be imported."""

GATED_STANDARD = {"ssl": ("link/*", "weights/download.py")}

HEAVY = (
    "openvino", "openvino_genai", "torch", "transformers", "optimum", "nncf", "huggingface_hub",
    "llguidance",
)  # fmt: skip
"""Never loaded by a command that only asks an agent, nor by an agent without a stage."""

UNSAFE_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
UNSAFE_CALLS = {"eval", "exec"}
UNSAFE_METHODS = {("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load")}

DOC = ROOT / "docs" / "architecture.md"
DOC_LINE = re.compile(r"^- `(meshinfer/[\w/]+\.py)`: \S", re.MULTILINE)

MODULES = sources("meshinfer")


def module_name(path: Path) -> str:
    name = relative(path).removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


KNOWN = {module_name(path) for path in MODULES}


def imported(tree: ast.AST) -> Iterator[str]:
    """Full name of every module that is imported anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the package"
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in KNOWN else base


def is_allowed(package: str, name: str) -> bool:
    """Whether a module of `package` may import our module `name`."""
    own = (f"meshinfer.{package}", f"meshinfer.{package}.*")
    always = ("meshinfer", "meshinfer.errors", "meshinfer.core", "meshinfer.core.*")
    if package == "core":
        always = ("meshinfer", "meshinfer.errors")
    return any(fnmatch(name, allowed) for allowed in (*own, *always, *MAY_IMPORT[package]))


def behind_gate(name: str, place: str) -> bool:
    """Whether the file `place` (below meshinfer/) may import the foreign module `name`."""
    top = name.partition(".")[0]
    if top in GATED_STANDARD:
        return any(fnmatch(place, gate) for gate in GATED_STANDARD[top])
    if top in sys.stdlib_module_names:
        return True
    return any(fnmatch(place, gate) for gate in THIRD_PARTY.get(top, ()))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_packages_import_only_what_is_below_them(path: Path) -> None:
    place = path.relative_to(PACKAGE).as_posix()
    package = place.partition("/")[0] if "/" in place else ""
    ours = [name for name in imported(tree_of(path)) if name.partition(".")[0] == "meshinfer"]
    if place == "__main__.py":
        assert ours == ["meshinfer.cli.main"]
    elif not package:  # errors.py and __init__.py
        assert ours == []
    else:
        assert [name for name in ours if not is_allowed(package, name)] == []


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_dependencies_stay_behind_their_gates(path: Path) -> None:
    place = path.relative_to(PACKAGE).as_posix()
    foreign = [name for name in imported(tree_of(path)) if name.partition(".")[0] != "meshinfer"]
    assert [name for name in foreign if not behind_gate(name, place)] == []


@pytest.mark.slow
@pytest.mark.parametrize("module", ["meshinfer.cli.main", "meshinfer.node.settings"])
def test_commands_start_without_openvino(module: str) -> None:
    script = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def unsafe_uses(tree: ast.AST) -> list[str]:
    """Whatever turns bytes of others into objects or code (S02)."""
    found = [name for name in imported(tree) if name.partition(".")[0] in UNSAFE_MODULES]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
            found.append(f"{node.func.id} in line {node.lineno}")
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            named = (node.func.value.id, node.func.attr)
            found.extend([f"{'.'.join(named)} in line {node.lineno}"] * (named in UNSAFE_METHODS))
        for keyword in node.keywords:
            if keyword.arg == "allow_pickle" and not _is_false(keyword.value):
                found.append(f"allow_pickle in line {node.lineno}")
    return found


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


@pytest.mark.parametrize("path", sources("meshinfer", "tools"), ids=relative)
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    assert unsafe_uses(tree_of(path)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from marshal import loads",
        "eval('1')",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=flag)",
        "yaml.load(f)",
    ],
)
def test_the_check_for_unsafe_uses_sees_them(source: str) -> None:
    assert unsafe_uses(ast.parse(source))


def test_the_check_for_unsafe_uses_lets_safe_ones_pass() -> None:
    safe = "np.load(f, allow_pickle=False)\nre.compile('x')\nself.eval()\nyaml.safe_load(f)"
    assert unsafe_uses(ast.parse(safe)) == []


@pytest.mark.parametrize(
    ("package", "name", "allowed"),
    [
        ("mesh", "meshinfer.link.base", True),
        ("mesh", "meshinfer.link.websocket", False),
        ("mesh", "meshinfer.serve.ring", False),
        ("serve", "meshinfer.mesh.planner", False),
        ("core", "meshinfer.wire.frame", False),
        ("node", "meshinfer.mesh.planner", True),
        ("api", "meshinfer.node.door", False),
    ],
)
def test_the_table_of_imports_means_what_it_says(package: str, name: str, allowed: bool) -> None:
    assert is_allowed(package, name) is allowed


def test_every_package_has_a_row_in_the_table() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(MAY_IMPORT)


def test_the_architecture_document_lists_every_module_once() -> None:
    listed = DOC_LINE.findall(DOC.read_text(encoding="utf-8"))
    present = {relative(path) for path in MODULES if path.name != "__init__.py"}
    assert sorted(listed) == sorted(present)
