"""`kbroker consume --group`: an ordinary member of a consumer group, on the command line.

Offsets are committed batch by batch, after the records were printed and flushed. A command that
dies never skips a record, but prints some again when it is started next. A rebalance happens only
while the member polls, and by then all records that it received are committed.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.cli.clients import READING, SILENCE, ClientErrors, client_settings, require_topics
from kbroker.cli.consumed import Batches, Ends
from kbroker.cli.exits import OK, CommandFailed, drop_stdout, say
from kbroker.cli.params import Bootstrap, connect
from kbroker.cli.unread_batches import UnreadBatches
from kbroker.client.group_admin import kind_of_group
from kbroker.server.terminal import HangUp, meaning_of_hang_up

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

_SIGNALLED = 128
"""A shell adds this to a signal's number for the exit code of a command that the signal ended."""


class Membership(NamedTuple):
    """`protocol`: classic or consumer. `start`: auto.offset.reset, for partitions without a
    committed offset."""

    group: str
    protocol: str
    topics: Sequence[str]
    start: str


class Ending:
    """The first SIGINT or SIGTERM, or the SIGHUP of a closed terminal, requests a clean end. A
    second one ends the command even while the reader of its output blocks it."""

    def __init__(self) -> None:
        self.signal_number = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number and number != signal.SIGHUP:  # A closed terminal may send it twice.
            drop_stdout()
            raise KeyboardInterrupt
        self.signal_number = self.signal_number or number

    @property
    def code(self) -> int:
        return _SIGNALLED + self.signal_number if self.signal_number else OK


@contextmanager
def on_signals(ending: Ending) -> Iterator[None]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    if meaning_of_hang_up() is HangUp.STOP:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, ending) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def consume_as_member(
    bootstrap: Bootstrap, membership: Membership, ends: Ends, show: Callable[[Message], None]
) -> int:
    """Join the group, print and commit until there is a reason to end, then leave. Returns the exit
    code."""
    from confluent_kafka import Consumer

    errors = ClientErrors(bootstrap, group=membership.group)
    unread = UnreadBatches(bootstrap)
    settings: dict[str, Any] = {
        **client_settings(bootstrap, errors),
        **READING,
        **unread.settings,
        "logger": SILENCE,
        "group.id": membership.group,
        "group.protocol": membership.protocol,
        "auto.offset.reset": membership.start,
    }
    if named := [name for name in membership.topics if not name.startswith("^")]:
        require_topics(bootstrap, named)
    _check_type(bootstrap, membership.group)
    ending = Ending()
    with on_signals(ending):
        consumer = Consumer(settings)
        batches = Batches(
            consumer, errors, ends, unread, lambda: ending.signal_number != 0, group=membership.group
        )
        try:
            _subscribe(consumer, membership.topics, batches)
            for messages in batches:
                for message in messages:
                    show(message)
                sys.stdout.flush()
                _commit(consumer, messages)
        finally:
            consumer.close()
    return ending.code


def _check_type(bootstrap: Bootstrap, group: str) -> None:
    """Raises CommandFailed for a group of another type: the broker's error would not name the
    type."""
    from kbroker.client import consumer_group_admin, group_admin

    with connect(bootstrap) as connection:
        found = group_admin.group_types(connection).get(group)
    if found in consumer_group_admin.OTHER_TYPES:
        hint = "; `kbroker share-consume` is for those" if found == "share" else ""
        raise CommandFailed(
            f"group {group} is {kind_of_group(found)}, and this command is for consumer groups{hint}"
        )


def _subscribe(consumer: Consumer, topics: Sequence[str], batches: Batches) -> None:
    """The callbacks keep `batches` informed of the assigned partitions."""

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        batches.assign({(each.topic, each.partition) for each in partitions})

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        batches.revoke({(each.topic, each.partition) for each in partitions})

    batches.is_assigned = False
    consumer.subscribe(list(topics), on_assign=assigned, on_revoke=revoked, on_lost=revoked)


def _commit(consumer: Consumer, messages: Sequence[Message]) -> None:
    """Commit the offsets after these records. Where the group has expelled this member meanwhile,
    only warns: the member that has their partition now will read them again. Raises CommandFailed
    for a fatal error of the client."""
    from confluent_kafka import KafkaException

    try:
        done = consumer.commit(offsets=list(_positions(messages)), asynchronous=False)
        errors = [each.error for each in done if each.error is not None]
    except KafkaException as refusal:
        errors = [refusal.args[0]]
    for error in errors[:1]:
        if error.fatal():
            raise CommandFailed(error.str())
        say(
            f"warning: {len(messages)} records were printed but not committed, and may be delivered again: "
            f"{error.str()}"
        )


def _positions(messages: Sequence[Message]) -> Iterable[TopicPartition]:
    """The offset after the last record of each partition."""
    from confluent_kafka import TopicPartition

    positions: dict[tuple[str, int], TopicPartition] = {}
    for message in messages:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is not None and partition is not None and offset is not None:
            positions[topic, partition] = TopicPartition(
                topic, partition, offset + 1, leader_epoch=message.leader_epoch()
            )
    return positions.values()
