"""Queues for single rows: created like `kbroker queues create` does, deleted after the row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from kbroker.client.group_admin import describe_share_group_offsets
from kbroker.client.queues.deletion import delete_queue
from kbroker.client.queues.plan import plan
from kbroker.client.queues.settings import Part, Wish, look
from kbroker.client.rpc import Connection
from perf.suite.candidates import KINDS, Candidate

OURS = frozenset(key for key, kind in KINDS.items() if kind.family == "kbroker")
_numbers = itertools.count(1)


@contextmanager
def queue(
    candidate: Candidate,
    settings: Mapping[str, str] | None = None,
    group_config: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Creates a queue with one partition and yields its name. `settings`: options of `kbroker
    queues create`, in the configs' units; other options have their defaults.

    The queue and its dead letters are deleted at the end, unless its broker has ended. Raises
    KafkaError."""
    name = f"queue-{next(_numbers)}"
    wish = Wish(name, settings=settings or {}, configs={Part.GROUP: group_config or {}})
    with candidate.connect() as connection:
        for step in plan(connection, wish).steps:
            step.run(connection)
    try:
        yield name
    finally:
        if candidate.is_running:
            with candidate.connect() as connection:
                delete_queue(connection, look(connection, name), force=True, with_dead_letters=True)


class Standing(NamedTuple):
    """The stored position of a queue.

    - `start_offset`: all jobs before it have left the in-flight window, finished or parked. A few
      more may have left it since this was stored.
    - `unfinished`: the exact number of unfinished jobs.
    """

    start_offset: int
    unfinished: int


def standing(connection: Connection, name: str) -> Standing:
    """The position of a queue with one partition. Raises KafkaError."""
    (found,) = describe_share_group_offsets(connection, name)
    if found.error is not None:
        raise found.error
    return Standing(found.start_offset or 0, found.lag or 0)
