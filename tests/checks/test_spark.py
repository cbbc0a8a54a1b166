"""Spark's distribution only reads files: which modules of the broker it may import, and that its
parts depend on each other in one direction.

The sources are parsed, as neither Spark nor Arrow is installed where these checks run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "spark" / "src"
FILES = sorted(SOURCES.rglob("*.py"))
FORMATS_AND_STORES = {
    "errors",
    "formats",
    "groups",
    "plugins",
    "protocol.consumer_protocol",
    "settings",
    "share",
    "share_state",
    "storage",
}
"""The parts of kbroker that only decide, and those that read and write files."""
ABOVE = {"kbroker_spark": ("kbroker_pipeline", "pyspark_kbroker"), "kbroker_pipeline": ("pyspark_kbroker",)}
"""What a package must not import; the packages that Spark looks for (pyspark_kbroker*) import
kbroker_spark."""
RUNS_A_BROKER = {"kbroker_pipeline/demo.py", "kbroker_pipeline/demo_work.py"}


def imported(path: Path) -> Iterator[str]:
    """Modules, or the names imported from them, in dots: `from a import b` is a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def test_the_walk_sees_the_code() -> None:
    assert {"kbroker_spark", "kbroker_pipeline", "pyspark_kbroker"} <= {path.parent.name for path in FILES}
    assert "kbroker_spark.cache.cache_dir" in set(imported(SOURCES / "kbroker_spark" / "session.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_spark_knows_files_only(path: Path) -> None:
    names = set(imported(path))
    broker = {name.removeprefix("kbroker.") for name in names if name.startswith("kbroker.")}
    if str(path.relative_to(SOURCES)) not in RUNS_A_BROKER:
        assert {name for name in broker if not is_within(name, FORMATS_AND_STORES)} == set()
        assert not any(is_within(name, {"trio", "asyncio", "socket", "confluent_kafka"}) for name in names)
    above = ABOVE.get(path.relative_to(SOURCES).parts[0], ())
    assert {name for name in names if name.startswith(above)} == set()
