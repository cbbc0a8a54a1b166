"""An unmodified share consumer and a stored batch whose payload contradicts its header: the queue
proceeds past it."""

from __future__ import annotations

import pytest

from kbroker.client import admin, group_admin, topic_logs
from kbroker.client.rpc import Connection
from kbroker.testing.broker import RunningBroker
from tests.clients.share_workers import Crew
from tests.clients.test_share_consumers import prepare, send
from tests.odd_batches import odd_batch


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("kind", ["no gzip", "no structure", "too few records", "an offset behind the batch"])
def test_a_queue_goes_on_behind_one(
    crew: Crew, broker: RunningBroker, name: str, kind: str, mode: str
) -> None:
    """librdkafka 2.16 returns an error or nothing to the application, and acknowledges the records
    that it cannot read as gaps. Where it does not, the locks expire until the delivery limit is
    reached."""
    prepare(broker, name, record_lock_duration_ms="1000")
    with broker.connect() as connection:
        (topic,) = admin.topics(connection, [name])
        topic_logs.append(connection, topic, 0, odd_batch(kind))
        worker = crew.start_one(name, mode=mode)
        worker.tell("subscribe", name)
        crew.until("it is done with", lambda: _lag(connection, name) == 0)
        for number in range(3):
            send(broker, name, [f"behind {number}"])
            crew.until_delivered([f"behind {number}"])
        # Before the close: a lock of one second may expire before the acknowledgements that a close
        # sends.
        crew.until("all is done with", lambda: _lag(connection, name) == 0)
        worker.close()


def _lag(connection: Connection, group: str) -> int | None:
    """None while the group has no offsets."""
    rows = group_admin.describe_share_group_offsets(connection, group)
    return rows[0].lag if rows else None
