"""The unfinished jobs of a queue, from what the broker returns of its partitions: an operator
deletes a queue that has none without a question."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.client.admin import Bounds, Topic
from kbroker.client.group_admin import ShareOffset
from kbroker.client.queues import counts
from kbroker.client.queues.settings import Queue
from kbroker.client.rpc import Connection

SPAN = Bounds(10, 50)


@pytest.mark.parametrize(
    ("start_offset", "lag", "jobs"),
    [
        (20, 7, 7),
        (20, 0, 0),
        (None, None, 40),  # The broker does not know it: nothing was acknowledged yet.
        (20, None, 40),  # The broker answers -1, or serves version 0 only.
        (20, -8, 40),  # That cannot be.
        (50, -8, 40),
        (51, None, 0),
        (51, -8, 0),  # Beyond the log's end.
    ],
)
def test_a_lag_that_is_unknown_or_impossible(
    monkeypatch: pytest.MonkeyPatch, start_offset: int | None, lag: int | None, jobs: int
) -> None:
    monkeypatch.setattr(counts, "bounds", lambda *_: dict.fromkeys(range(3), SPAN))
    rows = ShareOffset("q", 0, start_offset, 4, lag, None), ShareOffset("q", 1, 40, 4, 3, None)
    queue = Queue("q", Topic("q", UUID(int=1), (0, 1), is_internal=False), "share", "", None, {}, rows)
    connection: Connection = None  # type: ignore[assignment]
    assert counts.unfinished_jobs(connection, queue) == jobs + 3
