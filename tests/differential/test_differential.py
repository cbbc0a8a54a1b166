"""Every script against kbroker, its answers compared with those recorded from Apache Kafka.

Scripts are independent of each other and mostly wait, so all run concurrently on one broker before
the first test checks its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker.testing.broker import open_test_broker
from tests.checks.behaviour import DOCUMENT, named_rules, prefixes_of, rules
from tests.differential.known_differences import KNOWN, explain
from tests.differential.page import listed, only_in_newer
from tests.differential.running import AT_ONCE, BROKER_CONFIG, Found, differences, load_scripts, recorded, run
from tests.differential.script import Script

SCRIPTS = load_scripts()


def compare(script: Script, port: int) -> list[Found]:
    return differences(script, recorded(script), run(script, port))


@pytest.fixture(scope="module")
def compared() -> Iterator[Mapping[str, Future[list[Found]]]]:
    with (
        open_test_broker(storage="memory", config=BROKER_CONFIG) as broker,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        slowest_first = sorted(SCRIPTS.values(), key=lambda script: -script.seconds)
        yield {script.name: pool.submit(compare, script, broker.port) for script in slowest_first}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_answers_as_kafka(name: str, compared: Mapping[str, Future[list[Found]]]) -> None:
    unexplained = [each for each in compared[name].result() if explain(each) is None]
    assert not unexplained, "\n".join(
        f"{each.path}: kafka {each.kafka!r}, kbroker {each.kbroker!r}" for each in unexplained
    )


def test_every_listed_difference_is_met(compared: Mapping[str, Future[list[Found]]]) -> None:
    found = [each for future in compared.values() for each in future.result()]
    assert [known for known in KNOWN if not any(known.explains(each) for each in found)] == []


def test_every_difference_has_its_reason() -> None:
    rows = listed()
    assert [row.id for row in rows] == sorted(
        {known.id for known in KNOWN}, key=lambda name: int(name.partition("-")[2])
    )
    assert all(row.kafka and row.kbroker and row.why for row in rows)


def test_what_only_newer_kafka_has_is_shown_by_tests() -> None:
    known = rules(DOCUMENT.read_text())
    named = named_rules(prefixes_of(known))
    by_id = {rule.id: rule for rule in known}
    rows = only_in_newer()
    assert rows
    for row in rows:
        assert row.rules, row
        assert all(by_id[rule].is_left_out for rule in row.rules) or row.tests, row
        for test in row.tests:
            assert any(each.startswith(f"{test}::") for rule in row.rules for each in named.get(rule, ())), (
                f"{test} shows nothing of it"
            )


def test_no_recording_is_left_over() -> None:
    recordings = {
        f"{file.parent.name}.{file.stem}" for file in (Path(__file__).parent / "recorded").glob("*/*.json")
    }
    assert recordings == set(SCRIPTS)
