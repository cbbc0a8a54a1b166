"""docs/behaviour.md and the tests agree: ids are unique, each rule that a test names exists, and
each rule that no test shows is listed or left out."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.checks.behaviour import (
    DOCUMENT,
    ids_in,
    named_rules,
    not_yet_shown,
    prefixes_of,
    rules,
    without_a_test,
)

TEXT = DOCUMENT.read_text()
RULES = rules(TEXT)
PREFIXES = prefixes_of(RULES)


@cache
def named() -> dict[str, list[str]]:
    return named_rules(PREFIXES)


def test_every_row_is_read() -> None:
    assert len(RULES) == len(re.findall(r"^\| [A-Z]+-\d", TEXT, re.MULTILINE))
    assert min(len(rule.text) for rule in RULES) >= 10
    assert [rule.id for rule in RULES if not rule.source] == []


def test_ids_are_unique() -> None:
    assert [rule_id for rule_id, times in Counter(rule.id for rule in RULES).items() if times > 1] == []


def test_what_the_document_refers_to_is_there() -> None:
    assert set(ids_in(TEXT, PREFIXES)) - {rule.id for rule in RULES} == set()


def test_every_rule_that_a_test_names_is_there() -> None:
    known = {rule.id for rule in RULES}
    assert {rule_id: tests for rule_id, tests in named().items() if rule_id not in known} == {}


def test_what_is_not_shown_is_listed() -> None:
    """A new test removes its rules from the list; a new rule without a test is added to it."""
    missing, listed = without_a_test(RULES, named()), not_yet_shown(TEXT)
    assert (sorted(set(missing) - set(listed)), sorted(set(listed) - set(missing))) == ([], [])
    assert len(listed) == len(set(listed))


SOURCE = '''
class TestA:
    """SES-1 and KIP-932."""

    @parametrize("x", [1])  # SES-2
    async def test_b(
        self,  # SES-3..5
    ) -> None:  # SES-6
        """Text. SES-7"""
        assert 1  # SES-8


@script("SES-9", "typo")
def differential(s): ...
'''


def test_where_a_test_may_name_rules(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(SOURCE)
    assert named_rules(frozenset({"SES"}), [tmp_path]) == {
        "SES-1": ["test_x.py::TestA"],
        **{f"SES-{number}": ["test_x.py::TestA::test_b"] for number in range(2, 8)},
        "SES-9": ["test_x.py::differential"],
        "typo": ["test_x.py::differential"],
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SES-3: text", ["SES-3"]),
        ("GRP-4..6, ACK-1", ["GRP-4", "GRP-5", "GRP-6", "ACK-1"]),
        ("KAFKA-1, XGRP-2, A.2", []),
    ],
)
def test_ids_in_a_text(text: str, found: list[str]) -> None:
    assert ids_in(text, frozenset({"SES", "GRP", "ACK"})) == found
