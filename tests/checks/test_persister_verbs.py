"""The persister's interfaces stay small, and kbroker itself uses each verb."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.checks.queue_size import verbs
from tests.checks.sources import source

PACKAGE = Path(__file__).parents[2] / "kbroker"
IMPLEMENTATIONS = ("broker/persisters", "share", "share_state", "testing")
MOST_VERBS, MOST_FLAGS = 15, 3


def called() -> Iterator[str]:
    """Names of methods that are called or handed on, outside of persisters and of contract
    suites."""
    for path in PACKAGE.rglob("*.py"):
        if not path.relative_to(PACKAGE).as_posix().startswith(tuple(f"{each}/" for each in IMPLEMENTATIONS)):
            yield from source(path).attributes


def test_there_are_few_verbs() -> None:
    methods, flags = verbs(PACKAGE)
    assert len(methods) <= MOST_VERBS, methods
    assert len(flags) <= MOST_FLAGS, flags


def test_every_verb_has_a_caller() -> None:
    methods, _ = verbs(PACKAGE)
    by_upkeep = {"has_ended", "keep_house"}  # parked_cleaner.py and housekeeping.py of broker/persisters
    assert sorted(set(methods) - set(called()) - by_upkeep) == []
    upkeep = "".join(
        (PACKAGE / f"broker/persisters/{name}.py").read_text() for name in ("parked_cleaner", "housekeeping")
    )
    assert [verb for verb in sorted(by_upkeep) if f".{verb}(" not in upkeep] == []
