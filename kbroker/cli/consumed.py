"""Polls a confluent-kafka consumer and yields its records in batches, until there is a reason to
end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cli.clients import ClientErrors, text_of
from kbroker.cli.exits import CommandFailed, say
from kbroker.cli.unread_batches import UnreadBatches

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

JOINING_S = 10.0
"""How long a timeout waits for partitions to be assigned."""
_POLL_S = 0.2
_BATCH = 500


class Ends(NamedTuple):
    max_messages: int | None
    timeout_ms: int | None


def never() -> bool:
    return False


class Batches:
    """Polled records, batch by batch, until the wanted number has arrived, none arrived within the
    timeout, or `is_ended` returns true. `group`: that the consumer joins; None: it joins none.

    `assigned` has the partitions of this consumer; a rebalance changes it. The timeout starts once
    all of them were read to their ends. `is_assigned` is False before the first assignment. A
    member of the new protocol that gets no partition is never notified, so the wait for an
    assignment is limited.
    """

    def __init__(
        self,
        consumer: Consumer,
        errors: ClientErrors,
        ends: Ends,
        unread: UnreadBatches,
        is_ended: Callable[[], bool] = never,
        *,
        group: str | None = None,
    ) -> None:
        self.is_assigned = True
        self._unread = unread
        self._assigned: set[tuple[str, int]] = set()
        self._at_end: set[tuple[str, int]] = set()
        self._consumer, self._errors, self._is_ended = consumer, errors, is_ended
        self._group = group
        self._left = ends.max_messages
        self._timeout_s = float("inf") if ends.timeout_ms is None else ends.timeout_ms / 1000

    def assign(self, partitions: Collection[tuple[str, int]]) -> None:
        self.is_assigned = True
        self._assigned.update(partitions)
        self._at_end.difference_update(partitions)

    def revoke(self, partitions: Collection[tuple[str, int]]) -> None:
        self._assigned.difference_update(partitions)

    def __iter__(self) -> Iterator[list[Message]]:
        """Batches with at least one record."""
        quiet_since_s = began_s = time.monotonic()
        while (self._left is None or self._left > 0) and not self._is_ended():
            messages = self._poll()
            if messages:
                yield messages
            now_s = time.monotonic()
            is_joining = not self.is_assigned and now_s - began_s < JOINING_S
            if messages or is_joining or not self._assigned <= self._at_end:
                quiet_since_s = now_s
            elif now_s - quiet_since_s >= self._timeout_s:
                return

    def _poll(self) -> list[Message]:
        messages = []
        polled = self._consumer.consume(_BATCH if self._left is None else min(self._left, _BATCH), _POLL_S)
        for message in polled:
            at = message.topic() or "", message.partition() or 0  # An error may have neither.
            if (error := message.error()) is None:
                messages.append(message)
                self._at_end.discard(at)
                self._unread.delivered(at)
            elif error.code() != error._BAD_COMPRESSION:  # Otherwise `unread` takes the batch.
                # A consumer that joins no group may read without a right to one. The library
                # requires a group id and looks for that group's coordinator all the same.
                if self._group or error.code() != error.GROUP_AUTHORIZATION_FAILED:
                    _judge(error, message.topic(), self._group)
                self._at_end.add(at)
        if not polled:
            self._errors.check()
        messages += self._unread.take(
            self._consumer, None if self._left is None else self._left - len(messages)
        )
        if self._left is not None:
            self._left -= len(messages)
        return messages


def _judge(error: KafkaError, topic: str | None, group: str | None) -> None:
    """Raises CommandFailed for an error that a retry does not cure."""
    from confluent_kafka import KafkaError as Error

    if error.code() == Error._MAX_POLL_EXCEEDED:  # the reader of the output has blocked for minutes
        say(
            "warning: the group expelled this member, because its output was not read for too long; it "
            "rejoins"
        )
    elif error.code() != Error._PARTITION_EOF:
        raise CommandFailed(text_of(error, "read", topic=topic, group=group))
