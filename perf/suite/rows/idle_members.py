"""Idle members of a share group: each has its own connection, joins, and sends a heartbeat when one
is due.

    with idle_members(bootstrap, "workers", "orders", 492):
        ...  # they are members here, and leave the group at the end of the block

One process serves all of them, one after the other and evenly spread over the heartbeat interval,
so that they cost little outside the broker. They are assigned partitions like any member, and never
fetch. It must not know a broker's process.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Event
from typing import Any

from kbroker.client.rpc import Connection

JOIN_TIMEOUT_S = 120.0
_HEARTBEAT, _VERSION = "share_group_heartbeat", 1
_JOINING, _LEAVING = 0, -1
_LEAVE_TIMEOUT_S = 60.0
# UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH: errors after which a consumer rejoins
_LOST = frozenset({25, 110})


class IdleMember:
    """An idle member. Every method raises BrokerUnreachable, and RuntimeError for an error that a
    consumer would pass to its application."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.connection = Connection(host, int(port), client_id="idle", timeout_s=JOIN_TIMEOUT_S)
        self._group, self._topic = group, topic
        self._member_id = str(uuid.uuid4())
        self._epoch = _JOINING
        self.interval_s = 5.0

    def heartbeat(self) -> None:
        self.ask()
        self.hear()

    def ask(self) -> None:
        """Sends a heartbeat. The first one joins the group."""
        self._send(self._epoch)

    def hear(self) -> None:
        answer = self._receive()
        if answer.error_code.value in _LOST:
            self._send(_JOINING)
            answer = self._receive()
        if answer.error_code.value:
            raise RuntimeError(
                f"a heartbeat failed with error {answer.error_code.value}: {answer.error_message}"
            )
        self._epoch = answer.member_epoch
        self.interval_s = answer.heartbeat_interval.total_seconds()

    def ask_to_leave(self) -> None:
        self._send(_LEAVING)

    def hear_of_leaving(self) -> None:
        """Reads any response, since the group is no longer needed."""
        self._receive()

    def _send(self, epoch: int) -> None:
        topics = [self._topic] if epoch == _JOINING else None
        fields = {
            "group_id": self._group,
            "member_id": self._member_id,
            "member_epoch": epoch,
            "subscribed_topic_names": topics,
        }
        self.connection.send_raw(self.connection.encode(_HEARTBEAT, _VERSION, {**fields, "rack_id": None}))

    def _receive(self) -> Any:  # noqa: ANN401 - kio's entity
        return self.connection.read_response(_HEARTBEAT, _VERSION)


@contextmanager
def idle_members(bootstrap: str, group: str, topic: str, count: int) -> Iterator[None]:
    """All members have joined when the block begins. Raises RuntimeError if they cannot join, or if
    one of them fails during the block."""
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
            member.ask()  # All at once: one by one, each would wait for a sync.
        for member in members:
            member.hear()
        joined.set()
        _send_heartbeats(members, stop)
        for member in members:
            member.ask_to_leave()
        for member in members:
            member.hear_of_leaving()


def _send_heartbeats(members: Sequence[IdleMember], stop: Event) -> None:
    due = time.monotonic()
    while True:
        for member in members:
            due = max(due + member.interval_s / len(members), time.monotonic() - member.interval_s / 2)
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            member.heartbeat()
