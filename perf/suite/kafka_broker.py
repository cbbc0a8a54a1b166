"""Apache Kafka as its start script starts it: the released broker, as one node in KRaft mode, in a
child process.

The JVM's flags and heap are those of kafka-server-start.sh and kafka-run-class.sh. The broker's
settings are its defaults, except replication 1 for a single node, and
`log.segment.delete.delay.ms`, so that deleted topics free their disk space within a second instead
of a minute. Needs Java, and Maven at the first use.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kbroker.client.broker_process import free_port
from perf.suite.tls import TlsListener
from tests.differential.apache_kafka import CLUSTER_ID, LIBS, KafkaFailed, class_path

HEAP = ("-Xmx1G", "-Xms1G")
JVM_FLAGS = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip
_START_TIMEOUT_S = 90.0
_ASK_EVERY_S = 0.005
_ERROR_CHARACTERS = 300


@cache
def why_missing() -> str | None:
    """Why Kafka cannot be started here, in one line, or None. Fetches Kafka if needed. Tried
    once."""
    if shutil.which("java") is None:
        return "not installed: there is no java on the PATH"
    if not any(LIBS.glob("kafka_2.13-*.jar")) and shutil.which("mvn") is None:
        return "not installed: there is no mvn on the PATH to fetch it with"
    try:
        class_path()
    except KafkaFailed as error:
        return f"not installed, and could not be fetched: {' '.join(str(error).split())[:_ERROR_CHARACTERS]}"
    return None


class KafkaBroker:
    """One broker, over all its starts. `home` holds its log, settings and data."""

    def __init__(
        self, home: Path, config: Mapping[str, str] | None = None, tls: TlsListener | None = None
    ) -> None:
        self._home, self._config, self._tls = home, dict(config or {}), tls
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_formatted = False

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def prepare(self) -> None:
        """Formats its directory, as an operator does before the first start. Raises KafkaFailed."""
        if self._is_formatted:
            return
        self._home.mkdir(parents=True, exist_ok=True)
        properties = self._properties_file
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
        command = [
            "java",
            "-cp",
            class_path(),
            "kafka.tools.StorageTool",
            "format",
            "-t",
            CLUSTER_ID,
            "-c",
            str(properties),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KafkaFailed(
                f"Kafka's directory could not be formatted: {(done.stdout + done.stderr)[-500:]}"
            )
        self._is_formatted = True

    def start(self) -> None:
        """Returns when connections are accepted. Raises KafkaFailed."""
        self.prepare()
        command = ["java", *HEAP, *JVM_FLAGS, "-cp", class_path(), "kafka.Kafka", str(self._properties_file)]
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_listening():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise KafkaFailed(
                    f"Kafka did not start; its log ends: {self._log_file.read_text(errors='replace')[-500:]}"
                )
            time.sleep(_ASK_EVERY_S)

    def stop(self) -> None:
        """Sends SIGTERM and waits."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_listening(self) -> bool:
        """Reads the kernel's list of sockets, since connecting every few milliseconds would load
        the broker."""
        wanted = f":{self._port:04X} "
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                if state == "0A" and f"{local} ".endswith(wanted):
                    return True
        return False

    @property
    def _properties_file(self) -> Path:
        return self._home / "server.properties"

    @property
    def _log_file(self) -> Path:
        return self._home / "kafka.log"

    def _settings(self) -> dict[str, str]:
        controller = free_port()
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._home / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "log.segment.delete.delay.ms": "1000",
            **(self._tls.kafka_config(self._port, controller) if self._tls else {}),
            **self._config,
        }
