"""Imports go downwards only, nothing imports the command line, no cycles between packages, functions stay short."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

import undrift

ROOT = Path(undrift.__file__).parent
LAYERS = (
    ("errors",),
    ("core",),
    ("data", "models"),
    ("tasks",),
    ("rules",),
    ("rounds",),
    ("engines", "measure"),
    ("experiment",),
    ("federation",),
    ("recipes", "diagnose", "public"),
    ("report",),
    ("cli",),
    ("__main__",),
)
"""From the bottom to the top; packages of one layer do not know each other."""
HEIGHT = {package: height for height, layer in enumerate(LAYERS) for package in layer}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(source: str) -> Iterator[str]:
    """Every module of undrift that a source imports, also inside functions and for type checking only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "undrift":
            names = [f"undrift.{alias.name}" for alias in node.names] if node.module == "undrift" else [node.module]
            yield from names
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "undrift")


def upward(package: str, source: str) -> list[str]:
    """The imports that a module of a package must not have."""
    found = []
    for module in imported(source):
        other = package_of(module)
        if other != package and HEIGHT.get(other, 99) >= HEIGHT[package]:
            found.append(module)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downwards(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert not upward(package, path.read_text())


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("rules", "from undrift.engines.local import Local"),
        ("report", "from undrift.cli.display import show"),
        ("rounds", "import undrift.experiment.config"),
        ("data", "from undrift import models"),
        ("core", "def late():\n    from undrift.data import load"),
        ("rules", "if TYPE_CHECKING:\n    from undrift.rounds.worker import Work"),
        ("cli", "from undrift import simulate"),
    ],
)
def test_an_import_that_goes_upwards_is_found(package: str, line: str) -> None:
    assert upward(package, line)


def functions() -> list[tuple[str, int]]:
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                body = node.body[1:] if documented and len(node.body) > 1 else node.body
                name = f"{path.relative_to(ROOT)}:{node.name}"
                found.append((name, (node.end_lineno or 0) - body[0].lineno + 1))
    return found


def test_files_and_functions_stay_short() -> None:
    long_files = [str(path.relative_to(ROOT)) for path in MODULES if len(path.read_text().splitlines()) >= 400]
    assert not long_files
    lengths = functions()
    assert [name for name, length in lengths if length > 50] == []
    assert statistics.median(length for _, length in lengths) < 8


def test_scaffold_reads_like_the_paper() -> None:
    source = (ROOT / "rules" / "scaffold.py").read_text()
    rule = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Scaffold")
    assert (rule.end_lineno or 0) - rule.lineno + 1 < 40


def test_formatting_is_left_to_the_formatter() -> None:
    marks = [str(p.relative_to(ROOT)) for p in MODULES for mark in ("skip", "off") if f"fmt: {mark}" in p.read_text()]
    assert len(marks) < 10, marks
