"""Size limits for every Python and C file of the repository: 600 lines a file, and in Python 60
lines a function (without its decorators)."""

from __future__ import annotations

from pathlib import Path

from tests.checks.sources import source

ROOT = Path(__file__).parents[2]
FOLDERS = ("kbroker", "plugins", "clients", "tests", "perf", "spark")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
OUTSIDE = {"build", "dist"}


def files(*endings: str) -> list[Path]:
    return sorted(
        path
        for folder in FOLDERS
        for ending in endings
        for path in (ROOT / folder).rglob(f"*{ending}")
        if not OUTSIDE.intersection(path.relative_to(ROOT).parts)
    )


def python_files() -> list[Path]:
    return files(".py")


def c_files() -> list[Path]:
    return files(".c", ".h")


def test_the_walk_sees_the_code() -> None:
    assert ROOT / "kbroker" / "errors.py" in python_files()
    assert Path(__file__) in python_files()
    assert ROOT / "tests" / "powercut" / "recorder" / "recorder.h" in c_files()


def test_files_are_short() -> None:
    sizes = {
        path.relative_to(ROOT): len(path.read_text().splitlines()) for path in [*python_files(), *c_files()]
    }
    assert {path: lines for path, lines in sizes.items() if lines > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    assert [found for path in python_files() for found in long_functions(path)] == []


def test_files_say_what_they_are() -> None:
    """Every file with code opens with a docstring."""
    assert [path.relative_to(ROOT) for path in python_files() if not source(path).is_explained] == []


def long_functions(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} {name}: {lines} lines"
        for name, line, lines in source(path).functions
        if lines > MAX_FUNCTION_LINES
    ]
