"""The plugins import from kbroker only what is written down: kbroker-control-records the modules of
its decision, and kbroker-sqlite the storage SPI and what is made for engines."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISION = ROOT / "docs" / "decisions" / "0025-control-records-plugin.md"
ALLOWED = {
    "kbroker-control-records/kbroker_control_records": set(
        re.findall(r"^- `(kbroker\.[a-z_.]+)`$", DECISION.read_text(), re.MULTILINE)
    ),
    "kbroker-sqlite/kbroker_sqlite": {
        "kbroker.errors",
        "kbroker.storage.files",
        "kbroker.storage.keyvalue.chunked_log",
        "kbroker.storage.keyvalue.chunked_store",
        "kbroker.storage.keyvalue.chunks",
        "kbroker.storage.keyvalue.key_ranges",
        "kbroker.storage.spi",
    },
}


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def imported(tree: ast.Module) -> set[str]:
    """The modules of kbroker that a module imports, also for types only and inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if is_module(each) else node.module for each in inner}
    return {name for name in found if name.split(".")[0] == "kbroker"}


@pytest.mark.parametrize("package", ALLOWED)
def test_a_plugin_imports_exactly_what_is_written_down(package: str) -> None:
    files = sorted((ROOT / "plugins" / package).rglob("*.py"))
    assert files
    found: set[str] = set().union(*(imported(ast.parse(path.read_text())) for path in files))
    assert found == ALLOWED[package]


def test_every_plugin_is_walked() -> None:
    folders = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")}
    assert folders == {package.split("/")[0] for package in ALLOWED}
