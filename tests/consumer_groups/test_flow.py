"""Ordinary consumers of every client library: members join, leave, are killed and freeze while
records flow. No record is missed, and none is read twice except where a member died or froze before
its commit. Deliberately broken brokers show that the tests would notice.

The default run has one kind of members on one engine. In the full one a million records flow
through groups of confluent-kafka on each engine, half a million through Kafka's own consumer, and
200 000 through the clients in pure Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import DURABLE_ENGINES, require_engine
from tests.consumer_groups.flow import broker_config, run
from tests.crash.harness import LAUNCHER
from tests.kafka_tools.java import MISSING

SHORT_SESSION_MS, SESSION_MS = 4000, 6000
FULL = pytest.mark.full
JAVA = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
FLOW_S = 50
"""How long records are sent, if the machine keeps up: eight sessions, in each of which a member may
be hurt."""
GROUPS = [
    pytest.param(["range"], 250_000, id="range"),
    pytest.param(["cooperative"], 250_000, id="cooperative"),
    pytest.param(["consumer"], 250_000, id="consumer"),
    pytest.param(["range", "consumer"], 250_000, id="both-protocols"),
    pytest.param(["kafka-python"], 100_000, id="kafka-python"),
    pytest.param(["aiokafka"], 100_000, id="aiokafka"),
    pytest.param(["java-range"], 160_000, id="java-range", marks=JAVA),
    pytest.param(["java-cooperative"], 160_000, id="java-cooperative", marks=JAVA),
    pytest.param(["java-consumer"], 180_000, id="java-consumer", marks=JAVA),
]
"""The kinds of members of a group, and how many records flow through it."""


@pytest.fixture(scope="module", params=DURABLE_ENGINES)
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with open_test_broker(storage=require_engine(request.param), config=broker_config(SESSION_MS)) as running:
        yield running


def test_members_come_and_go(tmp_path: Path) -> None:
    with open_test_broker(config=broker_config(SHORT_SESSION_MS)) as broker:
        report, crew = run(
            broker,
            tmp_path,
            "orders",
            ["range"],
            records=20_000,
            per_second=2500,
            session_ms=SHORT_SESSION_MS,
        )
    assert report.ok, str(report)
    assert report.statistics.records == 20_000
    assert report.statistics.turns >= 6
    assert crew.killed + crew.frozen >= 2


@FULL
@pytest.mark.parametrize(("kinds", "records"), GROUPS)
def test_members_come_and_go_on_every_engine(
    broker: RunningBroker, kinds: list[str], records: int, tmp_path: Path
) -> None:
    report, crew = run(
        broker,
        tmp_path,
        "-".join(kinds),
        kinds,
        records=records,
        per_second=records // FLOW_S,
        session_ms=SESSION_MS,
    )
    print(f"{broker.storage}, {'+'.join(kinds)}: {crew.told()}; {report.statistics}")
    assert report.ok, str(report)
    assert report.statistics.records == records
    assert crew.killed >= 1
    assert crew.frozen >= 1
    assert crew.killed + crew.frozen >= 4


@FULL
@pytest.mark.parametrize(
    ("fault", "kind", "rules"),
    [
        ("takes-zombies", "range", {"zombie"}),
        ("takes-zombies", "consumer", {"zombie"}),
        ("gives-twice", "consumer", {"zombie"}),
        ("refuses-in-rebalance", "range", {"uncommitted"}),
        ("forgets-commits", "cooperative", {"start"}),
    ],
)
def test_a_broken_broker_is_caught(fault: str, kind: str, rules: set[str], tmp_path: Path) -> None:
    """Chance decides whether the fault shows, hence the further attempts."""
    for attempt in range(3):
        with open_test_broker(config=broker_config(SHORT_SESSION_MS), command=[*LAUNCHER, fault]) as broker:
            home = tmp_path / str(attempt)
            report, _ = run(
                broker,
                home,
                "orders",
                [kind],
                records=40_000,
                per_second=1500,
                session_ms=SHORT_SESSION_MS,
                seed=attempt,
            )
        if not report.ok:
            break
    assert rules & {violation.rule for violation in report.violations}, str(report)
