"""Budgets and habits that no linter knows. CONTRIBUTING.md tells the reasons."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source_tree import relative, sources, texts, tree_of

FILE_LINES = 300
FUNCTION_LINES = 50
CONSTRUCTOR_PARAMETERS = 7
EXCUSE = "# long: "
"""On the line of the `def` (or the first of a file), followed by the reason."""

NOT_NOUNS = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers"}

SPAWNERS = {"create_task", "ensure_future"}

MACHINE_PATHS = re.compile(r"(?<![\w.~$/}-])/(?:work|root|tmp|home/\w+|Users/\w+)/\w")
"""Folders that exist on the machine of one author. `$HOME/x` and `https://host/work/x` do not."""

PACKAGE_INDEX = re.compile(r"index[-_]url", re.IGNORECASE)
"""Where packages come from is the machine's business."""

PYTHON = sources("meshinfer", "tools")
ALL_PYTHON = sources("meshinfer", "tools", "tests")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def lines_of(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def is_excused(function: Function, lines: list[str]) -> bool:
    """Whether the signature carries the excuse."""
    signature = lines[function.lineno - 1 : function.body[0].lineno - 1]
    return any(EXCUSE in line for line in signature or lines[function.lineno - 1 :][:1])


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_files_fit_on_a_few_screens(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= FILE_LINES or EXCUSE in lines[0]


@pytest.mark.parametrize("path", ALL_PYTHON, ids=relative)
def test_functions_fit_on_a_screen(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    long = [
        f"{one.name} has {lines_of(one)} lines"
        for one in functions(tree_of(path))
        if lines_of(one) > FUNCTION_LINES and not is_excused(one, lines)
    ]
    assert long == []


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_constructors_take_few_parameters(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    many = [
        f"line {one.lineno}"
        for one in functions(tree_of(path))
        if one.name == "__init__" and not is_excused(one, lines)
        if len(one.args.args) + len(one.args.kwonlyargs) - 1 > CONSTRUCTOR_PARAMETERS
    ]
    assert many == []


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_a_file_is_a_noun(path: Path) -> None:
    words = {word for part in path.with_suffix("").parts[-2:] for word in part.split("_")}
    assert not words & NOT_NOUNS


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_every_module_says_what_it_is(path: Path) -> None:
    tree = tree_of(path)
    assert not tree.body or ast.get_docstring(tree)


def task_groups(tree: ast.AST) -> set[str]:
    """Source of every name that holds a TaskGroup in this file: it awaits what it starts."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and node.optional_vars is not None:
            if _names_group(node.context_expr):
                found.add(ast.unparse(node.optional_vars))
        elif isinstance(node, ast.arg | ast.AnnAssign) and _names_group(node.annotation):
            found.add(node.arg if isinstance(node, ast.arg) else ast.unparse(node.target))
        elif isinstance(node, ast.Assign) and _names_group(node.value):
            found.update(ast.unparse(target) for target in node.targets)
    return found


def _names_group(node: ast.expr | None) -> bool:
    return node is not None and "TaskGroup" in ast.unparse(node)


def dropped_tasks(tree: ast.AST) -> list[int]:
    """Lines that start a task and keep no handle on it: nobody would await it."""
    groups = task_groups(tree)
    dropped = []
    for node in ast.walk(tree):
        started: ast.expr | None = None
        if isinstance(node, ast.Expr):
            started = node.value
        elif isinstance(node, ast.Lambda):  # a callback's result goes nowhere
            started = node.body
        if isinstance(started, ast.Call) and _spawns(started.func, groups):
            dropped.append(started.lineno)
    return dropped


def _spawns(called: ast.expr, groups: set[str]) -> bool:
    if isinstance(called, ast.Name):
        return called.id in SPAWNERS
    if not isinstance(called, ast.Attribute) or called.attr not in SPAWNERS:
        return False
    return ast.unparse(called.value) not in groups


@pytest.mark.parametrize("path", ALL_PYTHON, ids=relative)
def test_every_task_has_an_owner(path: Path) -> None:
    assert dropped_tasks(tree_of(path)) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("asyncio.create_task(f())", [1]),
        ("loop.create_task(f())", [1]),
        ("ensure_future(f())", [1]),
        ("done.add_done_callback(lambda _: asyncio.create_task(f()))", [1]),
        ("task = asyncio.create_task(f())", []),
        ("async def f():\n    async with asyncio.TaskGroup() as group:\n"
         "        group.create_task(g())", []),
        ("async def f(group: asyncio.TaskGroup):\n    group.create_task(g())", []),
        ("async def f(group):\n    group.create_task(g())", [2]),
    ],
)  # fmt: skip
def test_the_check_for_dropped_tasks_sees_them(source: str, lines: list[int]) -> None:
    assert dropped_tasks(ast.parse(source)) == lines


def test_an_excuse_must_stand_in_the_signature() -> None:
    source = f"def f(\n    a: int,\n) -> None:  {EXCUSE}a table\n    pass\n"
    assert is_excused(next(functions(ast.parse(source))), source.splitlines())
    late = f"def f() -> None:\n    pass  {EXCUSE}no\n"
    assert not is_excused(next(functions(ast.parse(late))), late.splitlines())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /" + "work/main", True),
        ('open("/' + 'tmp/x")', True),
        ("cd /" + "home/anna/x", True),
        ("$HOME/" + "work/x and https://host/" + "work/x", False),
        ("~/" + "work/x", False),
    ],
)
def test_the_check_for_paths_of_one_machine_sees_them(text: str, found: bool) -> None:
    assert bool(MACHINE_PATHS.search(text)) is found


def test_no_file_names_a_path_or_a_package_index_of_one_machine() -> None:
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in texts()
        if name != relative(Path(__file__).resolve())
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATHS.search(line) or PACKAGE_INDEX.search(line)
    ]
    assert found == []
