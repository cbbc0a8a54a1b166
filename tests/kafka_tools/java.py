"""Runs Apache Kafka's released command-line tools, unmodified, and small Java programs against
kbroker.

Needs Java and Maven (tests/differential/apache_kafka.py fetches the jars); without them the tests
are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.differential.apache_kafka import class_path

HERE = Path(__file__).parent
TOOLS = "org.apache.kafka.tools"
PATIENCE_S = 120.0

SHARE_GROUPS = f"{TOOLS}.consumer.group.ShareGroupCommand"
CONSOLE_SHARE_CONSUMER = f"{TOOLS}.consumer.ConsoleShareConsumer"
SHARE_CONSUMER_PERFORMANCE = f"{TOOLS}.ShareConsumerPerformance"
VERIFIABLE_SHARE_CONSUMER = f"{TOOLS}.VerifiableShareConsumer"
CONSUMER_GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
CONSUMER_PERFORMANCE = f"{TOOLS}.ConsumerPerformance"
VERIFIABLE_CONSUMER = f"{TOOLS}.VerifiableConsumer"
ACLS = f"{TOOLS}.AclCommand"
CONFIGS = f"{TOOLS}.ConfigCommand"
TOPICS = f"{TOOLS}.TopicCommand"
GROUPS = f"{TOOLS}.GroupsCommand"
GET_OFFSETS = f"{TOOLS}.GetOffsetShell"
DELETE_RECORDS = f"{TOOLS}.DeleteRecordsCommand"
CONSOLE_PRODUCER = f"{TOOLS}.ConsoleProducer"

MISSING = None if shutil.which("java") and shutil.which("mvn") else "Java and Maven are needed"


class Ended(NamedTuple):
    code: int
    lines: list[str]
    """Non-empty lines of the standard output."""
    errors: str


Tool: TypeAlias = Callable[..., Ended]
"""Runs a tool against a broker and expects exit code 0: its main class, then arguments."""


def _command(main: str, arguments: Sequence[str]) -> list[str]:
    return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path(), main, *arguments]


def run(main: str, *arguments: str, given: str = "") -> Ended:
    """Run a tool, or a Java source file given by its path, with its arguments and standard input,
    until it ends."""
    done = subprocess.run(
        _command(main, arguments),
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Ended(done.returncode, [line for line in done.stdout.splitlines() if line.strip()], done.stderr)


@contextmanager
def running(main: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A tool that runs until SIGTERM, which it gets at the end of the block at the latest."""
    process = subprocess.Popen(
        _command(main, arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
