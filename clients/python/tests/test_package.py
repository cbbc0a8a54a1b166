"""The distribution: what it imports, and that it shares kbroker's wire code."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHARED = ROOT / "clients" / "python" / "src" / "kbroker_client" / "_shared"
OWN = {"formats/zstd.py"}
"""Of the shared modules, the one that the client has a version of."""
LINKS = sorted(path for path in SHARED.rglob("*.py") if path.name != "__init__.py" and path.is_symlink())
HEAVY = ("kbroker", "rocksdict", "lmdb", "numpy", "trio", "zstandard", "confluent_kafka", "click")


def test_importing_it_loads_no_broker_and_nothing_large() -> None:
    code = f"import sys, kbroker_client; print([each for each in {HEAVY} if each in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
        env={"PYTHONPATH": str(ROOT / "clients" / "python" / "src")},
    )  # fmt: skip
    assert ran.stdout == "[]\n"


def test_every_shared_module_is_a_link() -> None:
    found = {str(path.relative_to(SHARED)) for path in SHARED.rglob("*.py") if path.name != "__init__.py"}
    assert found - {str(path.relative_to(SHARED)) for path in LINKS} == OWN
    for path in LINKS:
        assert path.resolve() == ROOT / "kbroker" / path.relative_to(SHARED)


@pytest.mark.parametrize("path", LINKS, ids=lambda path: str(path.relative_to(SHARED)))
def test_a_shared_module_imports_only_other_shared_ones(path: Path) -> None:
    """By relative names, which are right in both places."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            if not node.level:
                names = [node.module or ""]
            else:
                folder = path.parent if node.level == 1 else path.parents[node.level - 1]
                parts = (node.module or "").split(".") if node.module else []
                files = [folder.joinpath(*parts)] if parts else [folder / each.name for each in node.names]
                assert all(file.with_suffix(".py").is_file() for file in files), ast.unparse(node)
        assert not any(name.split(".")[0] == "kbroker" for name in names), ast.unparse(node)
