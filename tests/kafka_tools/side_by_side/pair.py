"""Apache Kafka and kbroker with the same settings, and Kafka's tools run at both at once."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from kbroker.client.rpc import Connection
from kbroker.testing.broker import FAST_CONFIG, open_test_broker
from tests.differential.apache_kafka import running_kafka
from tests.kafka_tools.java import Ended, run, running
from tests.kafka_tools.side_by_side.known import Known
from tests.kafka_tools.side_by_side.known_tables import KNOWN
from tests.kafka_tools.side_by_side.output import lines

SETTINGS: Mapping[str, str] = {
    **FAST_CONFIG,
    "group.initial.rebalance.delay.ms": "0",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ADDRESS = "{address}"
"""In the options of a tool: where its broker is. Options without it are preceded by it."""


class Broker(NamedTuple):
    address: str
    names: Mapping[str, str]
    """Texts of its own in outputs, and what they are in both."""

    def arguments(self, options: str) -> list[str]:
        words = shlex.split(options)
        if ADDRESS not in words:
            words = ["--bootstrap-server", ADDRESS, *words]
        return [self.address if each == ADDRESS else each for each in words]


class Same:
    """Steps of one chapter. `problems` are the differences that no table names."""

    def __init__(self, pair: Pair, chapter: str) -> None:
        self._pair, self._chapter = pair, chapter
        self._known = [each for each in KNOWN if each.chapter == chapter]
        self._seen: set[tuple[Known, str]] = set()
        self.problems: list[str] = []

    def __call__(
        self,
        step: str,
        main: str,
        options: str = "",
        *,
        given: str = "",
        measured: bool = False,
        only: str = "",
    ) -> None:
        """Run a tool at both brokers, and compare. `only`: lines that begin otherwise do not
        count."""
        outputs = (lines(each, broker.names, measured)
                   for broker, each in self._pair.both(main, options, given))  # fmt: skip
        theirs, ours = ([line for line in output if re.match(only, line)] for output in outputs)
        left, right = Counter(theirs), Counter(ours)
        known = [each for each in self._known if fnmatchcase(step, each.steps)]
        for side, found in (("theirs", left - right), ("ours", right - left)):
            for line in found.elements():
                if not self._is_known(known, side, line):
                    self.problems.append(f"{self._chapter}: {step}: {side}: {line}")

    def _is_known(self, known: Sequence[Known], side: str, line: str) -> bool:
        for each in known:
            for pattern in each.theirs if side == "theirs" else each.ours:
                if pattern.fullmatch(line):
                    self._seen.add((each, pattern.pattern))
                    return True
        return False

    def outdated(self) -> list[str]:
        """Known differences that did not appear."""
        return [
            f"{self._chapter}: {each.steps}: no longer differs: {pattern.pattern}"
            for each in self._known
            for pattern in (*each.theirs, *each.ours)
            if (each, pattern.pattern) not in self._seen
        ]


class Pair:
    def __init__(self, kafka: Broker, kbroker: Broker) -> None:
        self.kafka, self.kbroker = kafka, kbroker

    def both(self, main: str, options: str, given: str = "") -> Iterator[tuple[Broker, Ended]]:
        """Run a tool at both, and wait."""
        with ThreadPoolExecutor(2) as pool:
            brokers = (self.kafka, self.kbroker)
            runs = [pool.submit(run, main, *each.arguments(options), given=given) for each in brokers]
            return zip(brokers, [each.result() for each in runs], strict=True)

    @contextmanager
    def running(self, main: str, options: str) -> Iterator[None]:
        """A tool that runs at both, until the end of the block."""
        with (
            running(main, *self.kafka.arguments(options)),
            running(main, *self.kbroker.arguments(options)),
        ):
            yield

    @contextmanager
    def chapter(self, name: str) -> Iterator[Same]:
        """At its end all differences must be known, and all known ones must have appeared."""
        same = Same(self, name)
        yield same
        if problems := [*same.problems, *same.outdated()]:
            raise AssertionError("\n".join(problems))


@contextmanager
def running_pair(home: Path) -> Iterator[Pair]:
    with open_test_broker(config=SETTINGS) as ours, running_kafka(home, SETTINGS) as port:
        theirs = _broker("127.0.0.1", port)
        yield Pair(theirs, _broker(ours.host, ours.port))


def _broker(host: str, port: int) -> Broker:
    with Connection(host, port) as connection:
        asked = {"endpoint_type": 1, "include_cluster_authorized_operations": False}
        cluster_id = connection.call("describe_cluster", 1, **asked).cluster_id
    return Broker(f"{host}:{port}", {f"{host}:{port}": "ADDRESS", cluster_id: "CLUSTER", str(port): "PORT"})
