"""Members of a share group that have nothing to do: each has a connection of its own, joins, and sends a heartbeat when one is due.

    with idle_members(bootstrap, "workers", "orders", 492):
        ...                                                 # they are members here, and leave the group behind it

One process of this machine carries them all, one after the other and evenly spread over the heartbeat interval, so that they cost the
machine little beside what they cost the broker. They are given partitions, as any member is, and never fetch. It must not know a
broker's process.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Event
from typing import Any

from kbroker.client.rpc import Connection

JOIN_TIMEOUT_S = 120.0
_JOINING, _LEAVING = 0, -1
_LEAVE_TIMEOUT_S = 60.0
_LOST = frozenset({25, 110})  # UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH: what a consumer answers by joining anew


class IdleMember:
    """Raises BrokerUnreachable in every method, and RuntimeError for an error that a consumer would tell its application."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.connection = Connection(host, int(port), client_id="idle", timeout_s=JOIN_TIMEOUT_S)
        self._group, self._topic = group, topic
        self._member_id = str(uuid.uuid4())
        self._epoch = _JOINING
        self.interval_s = 5.0

    def heartbeat(self) -> None:
        answer = self._send(self._epoch)
        if answer.error_code.value in _LOST:
            self._epoch = _JOINING
            answer = self._send(self._epoch)
        if answer.error_code.value:
            raise RuntimeError(f"a heartbeat was answered with error {answer.error_code.value}: {answer.error_message}")
        self._epoch = answer.member_epoch
        self.interval_s = answer.heartbeat_interval.total_seconds()

    def leave(self) -> None:
        self._send(_LEAVING)

    def _send(self, epoch: int) -> Any:  # noqa: ANN401 - kio's entity
        return self.connection.call(
            "share_group_heartbeat", 1, group_id=self._group, member_id=self._member_id, member_epoch=epoch, rack_id=None,
            subscribed_topic_names=[self._topic] if epoch == _JOINING else None,
        )  # fmt: skip


@contextmanager
def idle_members(bootstrap: str, group: str, topic: str, count: int) -> Iterator[None]:
    """All have joined when the block begins. Raises RuntimeError when they could not, or one of them failed meanwhile."""
    context = multiprocessing.get_context("spawn")
    joined, stop = context.Event(), context.Event()
    process = context.Process(target=_carry, args=(bootstrap, group, topic, count, joined, stop), daemon=True)
    process.start()
    try:
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while not joined.wait(0.1):
            if not process.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"{count} members could not join {group}")
        yield
    finally:
        stop.set()
        process.join(_LEAVE_TIMEOUT_S)
        process.kill()
        process.join()
    if process.exitcode:
        raise RuntimeError(f"the process of {count} idle members ended with exit code {process.exitcode}")


def _carry(bootstrap: str, group: str, topic: str, count: int, joined: Event, stop: Event) -> None:
    with ExitStack() as stack:
        members = [IdleMember(bootstrap, group, topic) for _ in range(count)]
        for member in members:
            stack.callback(member.connection.close)
            member.heartbeat()
        joined.set()
        due = time.monotonic()
        while True:
            for member in members:
                due = max(due + member.interval_s / count, time.monotonic() - member.interval_s / 2)
                if stop.wait(max(0.0, due - time.monotonic())):
                    for leaving in members:
                        leaving.leave()
                    return
                member.heartbeat()
