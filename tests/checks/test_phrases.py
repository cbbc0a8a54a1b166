"""Prose contains none of the phrases of tests/checks/phrases.py. A folder is added to DONE when its
prose has been revised."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checks.phrases import ROOT, search

DONE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "PACKAGE.md",
    "docs/dead-letters.md",
    "docs/decisions",
    "docs/durability.md",
    "tests/README.md",
    "docs/internals",
    "docs/metrics.md",
    "docs/pipeline.md",
    "docs/settings.md",
    "docs/spark.md",
    "kbroker/__init__.py",
    "kbroker/__main__.py",
    "kbroker/api",
    "kbroker/broker",
    "kbroker/cli",
    "kbroker/client",
    "kbroker/clock.py",
    "kbroker/errors.py",
    "kbroker/formats",
    "kbroker/groups",
    "kbroker/inspection",
    "kbroker/metrics.py",
    "kbroker/metrics_export",
    "kbroker/plugins.py",
    "kbroker/protocol",
    "kbroker/redrive",
    "kbroker/seldom.py",
    "kbroker/server",
    "kbroker/settings",
    "kbroker/share",
    "kbroker/share_state",
    "kbroker/storage",
    "kbroker/testing",
    "perf",
    "plugins",
    "spark/src",
    "spark/tests",
    "tests/api",
    "tests/broker",
    "tests/cli",
    "tests/client",
    "tests/clients",
    "tests/consumer_groups",
    "tests/contract",
    "tests/crash",
    "tests/differential",
    "tests/formats",
    "tests/groups",
    "tests/judges",
    "tests/kafka_tools",
    "tests/metrics",
    "tests/perf",
    "tests/powercut",
    "tests/protocol",
    "tests/server",
    "tests/settings",
    "tests/share",
    "tests/share_state",
    "tests/storage",
    "tests/testing",
    "tests/workloads",
)


@pytest.mark.parametrize("path", DONE)
def test_prose_is_free_of_listed_phrases(path: str) -> None:
    assert search([ROOT / path]) == [], f"python -m tests.checks.phrases {path}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A waiter that is told\nof it", [(1, "is told")]),
        ("Two lines.\nWhat is stored is read.", [(2, "What is")]),
        ("What is it? A store.", []),
        ('Say `anew` or "anew", not like this.', []),
        ("```\nwhoever\n```\n\nWhoever reads this", [(5, "Whoever")]),
    ],
)
def test_the_search(
    text: str, found: list[tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.checks.phrases.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    assert [
        (hit.line, hit.phrase[: len(phrase)]) for hit, (_, phrase) in zip(search([page]), found, strict=True)
    ] == found


def test_comments_docstrings_and_strings_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.checks.phrases.ROOT", tmp_path)
    file = tmp_path / "module.py"
    file.write_text('"""Reads it anew."""\n\n# It goes\n# on.\nx = f"{1} is told"\n')
    assert {(hit.line, hit.phrase) for hit in search([file])} == {(1, "anew"), (3, "goes on"), (5, "is told")}
