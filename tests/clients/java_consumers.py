"""The Java consumer behind the interface of group_consumers: each consumer is a process that runs
tests/kafka_tools/ConsumerProgram.java."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import pytest

from tests.clients.group_consumers import ClientError, Committed, Got, GroupConsumer, Place
from tests.differential.apache_kafka import class_path
from tests.kafka_tools.java import HERE, MISSING

_ASSIGNORS = {
    "range": "Range",
    "roundrobin": "RoundRobin",
    "sticky": "Sticky",
    "cooperative-sticky": "CooperativeSticky",
}
_CLOSE_TIMEOUT_S = 60.0


@cache
def _compiled() -> tempfile.TemporaryDirectory[str]:
    """Kept until the tests end: compiling takes longer than most tests."""
    classes = tempfile.TemporaryDirectory(prefix="kbroker-java-")
    subprocess.run(
        ["javac", "-cp", class_path(), "-d", classes.name, str(HERE / "ConsumerProgram.java")], check=True
    )
    return classes


def _assignors(names: str) -> str:
    return ",".join(
        f"org.apache.kafka.clients.consumer.{_ASSIGNORS[name]}Assignor" for name in names.split(",")
    )


class JavaConsumer(GroupConsumer):
    protocol = "classic"
    lacks: frozenset[str] = frozenset()

    def _open(self, bootstrap: str, group: str, settings: Mapping[str, Any]) -> None:
        if MISSING is not None:
            pytest.skip(MISSING)
        ours = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": self.protocol,
            **settings,
        }
        if strategies := ours.get("partition.assignment.strategy"):
            ours["partition.assignment.strategy"] = _assignors(strategies)
        command = [
            "java",
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{_compiled().name}:{class_path()}",
            "ConsumerProgram",
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        try:
            for name, value in ours.items():
                self._ask("set", name, str(value).lower() if isinstance(value, bool) else value)
            self._ask("open")
        except BaseException:
            self._process.kill()
            self._process.communicate()
            raise

    def _ask(self, *words: object) -> list[list[str]]:
        """Return the rows of the answer; "changed" events are counted meanwhile."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\t".join(map(str, words)) + "\n")
        process.stdin.flush()
        rows = []
        for line in process.stdout:
            row = line.rstrip("\n").split("\t")
            if row[0] == "done":
                return rows
            if row[0] == "error":
                raise ClientError(int(row[1]), row[2])
            if row[0] == "changed":
                self.changes += 1
            else:
                rows.append(row)
        raise AssertionError(f"the Java consumer ended with {process.wait()}")

    def subscribe(self, *topics: str) -> None:
        self._ask("subscribe", *topics)

    def subscribe_pattern(self, pattern: str) -> None:
        self._ask("pattern", pattern)

    def assign(self, *places: Place) -> None:
        self._ask("assign", *[word for place in places for word in place])

    def _poll(self, seconds: float) -> list[Got]:
        rows = self._ask("poll", int(seconds * 1000))
        return [Got(topic, int(partition), int(offset), value) for _, topic, partition, offset, value in rows]

    def assignment(self) -> set[Place]:
        return {(topic, int(partition)) for topic, partition in self._ask("assignment")}

    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        self._ask("commit", *[word for place, row in (offsets or {}).items() for word in (*place, *row)])

    def commit_async(self) -> None:
        self._ask("commit_async")

    def committed(self, place: Place) -> Committed | None:
        rows = self._ask("committed", *place)
        return Committed(int(rows[0][0]), rows[0][1]) if rows else None

    def seek(self, place: Place, offset: int) -> None:
        self._ask("seek", *place, offset)

    def pause(self, places: Iterable[Place]) -> None:
        for place in places:
            self._ask("pause", *place)

    def resume(self, places: Iterable[Place]) -> None:
        for place in places:
            self._ask("resume", *place)

    def offset_for_time(self, place: Place, timestamp_ms: int) -> int | None:
        rows = self._ask("offset_for_time", *place, timestamp_ms)
        return int(rows[0][0]) if rows else None

    def close(self) -> None:
        """May be called twice."""
        if self._process.poll() is None:
            try:
                self._ask("close")
            finally:
                self._process.communicate(timeout=_CLOSE_TIMEOUT_S)


class JavaNewConsumer(JavaConsumer):
    protocol = "consumer"

    def _open(self, bootstrap: str, group: str, settings: Mapping[str, Any]) -> None:
        the_broker_s = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
        super()._open(
            bootstrap, group, {name: value for name, value in settings.items() if name not in the_broker_s}
        )
