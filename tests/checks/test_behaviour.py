"""docs/rules, the pages made from it and the tests agree: ids are unique, each rule that a test
names exists, and each rule that no test shows is marked as untested or left out."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.checks.behaviour import ids_in, named_rules, prefixes_of, without_a_test
from tests.checks.rules import STATES, table
from tests.checks.rules_doc import PAGES

RULES = table().rules
DIFFERENCES = table().differences
PREFIXES = prefixes_of(RULES)


@cache
def named() -> dict[str, list[str]]:
    return named_rules(PREFIXES)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_pages_are_made_from_the_table(page: Path) -> None:
    assert page.read_text() == PAGES[page](), "run `make docs`"


def test_every_row_is_complete() -> None:
    assert min(len(rule.text) for rule in RULES) >= 10
    assert [rule.id for rule in RULES if not rule.source] == []
    assert [rule.id for rule in RULES if rule.state not in STATES or (rule.state and not rule.kbroker)] == []
    assert [each.id for each in DIFFERENCES if not (each.kafka and each.kbroker and each.why)] == []
    assert [row.id for row in (*RULES, *DIFFERENCES) if "|" in str(row)] == []


def test_ids_are_unique() -> None:
    times = Counter(row.id for row in (*RULES, *DIFFERENCES))
    assert [row_id for row_id, count in times.items() if count > 1] == []


def test_what_the_pages_refer_to_is_there() -> None:
    text = "\n".join(render() for render in PAGES.values())
    named_ids = {*ids_in(text, PREFIXES | {"DIF"}), *(rule for each in DIFFERENCES for rule in each.rules)}
    assert named_ids - {row.id for row in (*RULES, *DIFFERENCES)} == set()


def test_every_rule_that_a_test_names_is_there() -> None:
    known = {rule.id for rule in RULES}
    assert {rule_id: tests for rule_id, tests in named().items() if rule_id not in known} == {}


def test_what_is_not_shown_is_marked() -> None:
    """A new test removes the mark from its rules; a new rule without a test has it."""
    assert without_a_test(RULES, named()) == [rule.id for rule in RULES if rule.untested]


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
