"""Runs scripts against a broker, stores Kafka's transcripts as data, compares.

python -m tests.differential record [NAME …]     against Apache Kafka (make record-kafka)
python -m tests.differential compare [NAME …]    against kbroker (make differential)
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from kbroker.testing.broker import open_test_broker
from tests.differential import scripts
from tests.differential.restarts import Broker, Restartable
from tests.differential.script import SCRIPTS, Script, Session
from tests.differential.secured import Place, Secured, session_name
from tests.differential.transcript import Json

RECORDED = Path(__file__).parent / "recorded"
At: TypeAlias = "int | Place | Broker"
"""Where a broker is: its port, for scripts of the first profile."""
PROFILES: Sequence[str] = ("plain", "secured", "restarts")
AT_ONCE = 12
"""Scripts that run concurrently: most of their time is waiting."""
_IDENTITY = (
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "group_id",
    "member_id",
    "resource_name",
    "partition_index",
    "partition",
    "index",
)
BROKER_CONFIG = {
    "auto.create.topics.enable": "false",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.max.share.sessions": "2000",
    "group.share.assignment.interval.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.max.size": "4",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.max.size": "6",
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
"""The config of both brokers: bounds low enough for scripts that wait for a lock or a session to
expire."""


def load_scripts() -> dict[str, Script]:
    for module in pkgutil.iter_modules(scripts.__path__):
        importlib.import_module(f"{scripts.__name__}.{module.name}")
    return SCRIPTS


def run(script: Script, at: At) -> list[Json]:
    """The transcript of one script. Raises any exception of the script, AssertionError if it could
    not run as intended. `at`: a broker with the script's profile."""
    session = opened(script, at)
    try:
        script.run(session)
    finally:
        session.close()
    return json.loads(json.dumps(session.steps))


def opened(script: Script, at: At) -> Session:
    if isinstance(at, int):
        return Session(session_name(script), at)
    if isinstance(at, Place):
        return Secured(session_name(script), at.plain, broker=at)
    return Restartable(session_name(script), at.port, broker=at)


@contextmanager
def kbroker(profile: str, storage: str) -> Iterator[At]:
    if profile == "secured":
        with secured_broker(storage) as place:
            yield place
    else:
        # The memory engine does not survive a restart.
        engine = "segment" if profile == "restarts" and storage == "memory" else storage
        with open_test_broker(storage=engine, config=BROKER_CONFIG) as broker:
            yield broker if profile == "restarts" else broker.port


@contextmanager
def secured_broker(storage: str) -> Iterator[Place]:
    """kbroker with the second profile's settings."""
    with tempfile.TemporaryDirectory() as home:
        place = Place(Path(home))
        config = {
            **BROKER_CONFIG,
            **place.settings(SCRIPTS.values()),
            "listeners": place.listeners(),
        }
        with open_test_broker(storage=storage, config=config, port=place.plain):
            yield place


def recorded_file(script: Script) -> Path:
    module, name = script.name.split(".")
    return RECORDED / module / f"{name}.json"


def record(script: Script, at: At, kafka_version: str) -> list[Json]:
    steps = run(script, at)
    file = recorded_file(script)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"kafka": kafka_version, "steps": steps}, indent=1) + "\n")
    return steps


class NotRecorded(Exception):
    """There is no transcript of Kafka for this script, or one of another version of the script."""


def recorded(script: Script) -> list[Json]:
    file = recorded_file(script)
    if not file.exists():
        raise NotRecorded(f"{script.name}: no recording; run make record-kafka")
    return list(json.loads(file.read_text())["steps"])


class Found(NamedTuple):
    """A place where the answers differ. `path` as in `3.share_fetch.responses[0].error_code`."""

    script: str
    path: str
    kafka: Json
    kbroker: Json


def differences(script: Script, kafka: list[Json], kbroker: list[Json]) -> list[Found]:
    if [_asked(step) for step in kafka] != [_asked(step) for step in kbroker]:
        raise NotRecorded(
            f"{script.name} has changed since it was recorded, or went another way; run make record-kafka"
        )
    found: list[Found] = []
    for index, (theirs, ours) in enumerate(zip(kafka, kbroker, strict=True)):
        start = f"{index}.{theirs.get('api', theirs.get('note'))}"
        _compare(script.name, start, _answer(theirs), _answer(ours), found)
    return found


def _asked(step: Json) -> Json:
    return {name: value for name, value in step.items() if name not in ("answer", "value")}


def _answer(step: Json) -> Json:
    return step.get("answer", step.get("value"))


def _by_identity(rows: list[Json]) -> list[Json]:
    """Rows about the same thing in the same place, whatever else differs in them."""
    if not all(isinstance(row, dict) for row in rows):
        return rows
    return sorted(rows, key=lambda row: [json.dumps(row.get(field)) for field in _IDENTITY])


def _compare(name: str, path: str, kafka: Json, kbroker: Json, found: list[Found]) -> None:
    if isinstance(kafka, dict) and isinstance(kbroker, dict) and kafka.keys() == kbroker.keys():
        for key in kafka:
            _compare(name, f"{path}.{key}", kafka[key], kbroker[key], found)
    elif isinstance(kafka, list) and isinstance(kbroker, list) and len(kafka) == len(kbroker):
        for index, (theirs, ours) in enumerate(zip(_by_identity(kafka), _by_identity(kbroker), strict=True)):
            _compare(name, f"{path}[{index}]", theirs, ours, found)
    elif kafka != kbroker:
        found.append(Found(name, path, kafka, kbroker))
