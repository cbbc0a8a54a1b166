"""Brokers that tests of the client share."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from kbroker.client.admin import topics
from kbroker.client.broker_process import RunningBroker
from kbroker.client.rpc import Connection

SHORT_LOCKS = {"group.share.min.record.lock.duration.ms": "1000", "group.initial.rebalance.delay.ms": "0"}
KAFKA = {
    **SHORT_LOCKS,
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "auto.create.topics.enable": "false",
}


class Target:
    """A broker that tests share; each uses topics and groups of its own."""

    def __init__(self, port: int, broker: RunningBroker | None) -> None:
        self.port = port
        self.bootstrap = f"127.0.0.1:{port}"
        self.broker = broker
        """None: it is Apache Kafka."""

    def topic(self, partitions: int = 1, name: str | None = None) -> str:
        name = name or f"t{uuid.uuid4().hex[:12]}"
        row = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (),
               "configs": ()}  # fmt: skip
        with Connection("127.0.0.1", self.port) as connection:
            answer = connection.call("create_topics", topics=[row], validate_only=False, timeout=30_000)
            assert answer.topics[0].error_code == 0, answer
            give_up_s = time.monotonic() + 30
            while name not in {topic.name for topic in topics(connection)}:
                assert time.monotonic() < give_up_s, f"{name} was created, and is still unknown"
                time.sleep(0.01)  # Kafka answers before its metadata has the topic.
        return name

    def group(self, **configs: str) -> str:
        """Begins at the start of its topics. `configs`: with _ for the dots."""
        name = f"g{uuid.uuid4().hex[:12]}"
        given = {key.replace("_", "."): value for key, value in configs.items()}
        self.configure(name, {"share.auto.offset.reset": "earliest", **given})
        return name

    def configure(self, name: str, configs: Mapping[str, str], kind: int = 32) -> None:
        """`kind`: 32 a group, 2 a topic."""
        rows = [{"name": key, "config_operation": 0, "value": value} for key, value in configs.items()]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        with Connection("127.0.0.1", self.port) as connection:
            answer = connection.call("incremental_alter_configs", resources=[resource], validate_only=False)
        assert answer.responses[0].error_code == 0, answer
