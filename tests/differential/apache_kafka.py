"""A real Apache Kafka, one node in KRaft mode, from Maven: the source of recorded answers, and of
Kafka's tools.

Needs Java and Maven on the PATH. The jars stay in kafka/libs, outside the repository.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kbroker.client.broker_process import free_port

HERE = Path(__file__).parent
POM = HERE / "kafka" / "pom.xml"
LIBS = POM.parent / "libs"
CLUSTER_ID = "a2Jyb2tlci10ZXN0cy0wMQ"
START_TIMEOUT_S = 600.0


class KafkaFailed(Exception):
    """Maven, formatting the directory, or the broker itself failed; the text ends with the
    output."""


def class_path() -> str:
    """The class path of the released broker and tools, fetched on first use."""
    return f"{fetched(POM)}/*"


def fetched(pom: Path) -> Path:
    """The folder `libs` beside a pom, with the jars that it names, fetched on first use. Raises
    KafkaFailed."""
    libs = pom.parent / "libs"
    if not any(libs.glob("*.jar")):
        _run(
            "mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
            f"-DoutputDirectory={libs}", "-DincludeScope=runtime",
        )  # fmt: skip
    return libs


def version() -> str:
    """The version of the broker in kafka/libs, such as "4.4.0"."""
    class_path()
    (jar,) = LIBS.glob("kafka_2.13-*.jar")
    return jar.stem.removeprefix("kafka_2.13-")


class RunningKafka:
    """One broker over all its starts, on an empty directory below `home`.

    `listeners`: all but the controller's; default: one for plain text. `port`: that of the plain
    listener, where `listeners` or `config` names the listeners.
    """

    def __init__(
        self, home: Path, config: Mapping[str, str], listeners: str = "", port: int | None = None
    ) -> None:
        self.port, controller = port or free_port(), free_port()
        listeners = listeners or f"PLAINTEXT://127.0.0.1:{self.port}"
        self._properties, self._log_file = home / "server.properties", home / "kafka.log"
        settings = _settings(home, listeners, controller, config)
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._java = ["java", "-Xmx768m", "-cp", class_path()]
        _run(*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when the port accepts connections. Raises KafkaFailed."""
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._properties)], stdout=log, stderr=subprocess.STDOUT
            )
        _wait_for_port(self._process, self.port, self._log_file)

    def kill(self) -> None:
        """Send SIGKILL and wait. No error if the broker does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def started_kafka(
    home: Path, config: Mapping[str, str], listeners: str = "", port: int | None = None
) -> Iterator[RunningKafka]:
    """Start a broker (see RunningKafka); kill it at the end."""
    broker = RunningKafka(home, config, listeners, port)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@contextmanager
def running_kafka(
    home: Path, config: Mapping[str, str], listeners: str = "", port: int | None = None
) -> Iterator[int]:
    """Likewise; yields its port."""
    with started_kafka(home, config, listeners, port) as broker:
        yield broker.port


def _settings(home: Path, listeners: str, controller: int, config: Mapping[str, str]) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(home / "data"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        **config,
    }


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KafkaFailed(
            f"{' '.join(command[:3])} … ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
        )


def _wait_for_port(process: subprocess.Popen[bytes], port: int, log_file: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise KafkaFailed(
        f"no broker on port {port}; its log ends:\n{log_file.read_text(errors='replace')[-3000:]}"
    )
