"""`kbroker consume`: read a topic as a log, from an offset on. Takes nothing away and commits nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from kbroker.cli.clients import MAX_MESSAGE_BYTES, ClientErrors, client_settings, print_record, require_topics
from kbroker.cli.exits import CommandFailed
from kbroker.cli.params import COUNT, INDEX, Address, bootstrap_option

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_POLL_S = 0.2
_BATCH = 500


class Start(click.ParamType[int]):
    """`earliest`, `latest` or an offset, as librdkafka's logical or absolute offset."""

    name = "earliest|latest|OFFSET"

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> int:
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

        if isinstance(value, int):
            return value
        text = str(value)
        if text in ("earliest", "latest"):
            return OFFSET_BEGINNING if text == "earliest" else OFFSET_END
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 1 << 63):
            self.fail(f"{text!r} is neither earliest nor latest nor an offset", param, context)
        return int(text)


@click.command()
@click.argument("topic")
@click.option("--from", "start", type=Start(), default="earliest", show_default=True, help="Where to begin, in every partition.")
@click.option("--partition", "-p", "partitions", type=INDEX, multiple=True, help="Only this partition; may be repeated.")
@click.option("--max-messages", "-n", type=COUNT, help="End after this many records.")
@click.option("--timeout-ms", type=COUNT, help="End when no record has come for this long.  [default: wait forever]")
@click.option("--key-separator", "-k", metavar="TEXT", help="Print the key and TEXT before each value.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per record.")
@bootstrap_option
def consume(
    topic: str,
    start: int,
    partitions: tuple[int, ...],
    max_messages: int | None,
    timeout_ms: int | None,
    key_separator: str | None,
    as_json: bool,
    bootstrap: Address,
) -> None:
    """Print records of a topic from an offset on.

    Prints one record of TOPIC per line and goes on as new ones arrive. Nothing is committed or acknowledged.
    """
    from confluent_kafka import Consumer, TopicPartition

    errors = ClientErrors(bootstrap)
    settings = {
        **client_settings(bootstrap, errors),
        "group.id": "kbroker-consume",  # required by the library; no group is joined and no offset committed
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,  # tells a slow start from an empty topic
        "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
        "fetch.wait.max.ms": 200,
    }
    known = require_topics(bootstrap, [topic])[topic]
    if missing := sorted(set(partitions) - set(known)):
        raise CommandFailed(f"topic {topic} has no partition {missing[0]} (it has {len(known)})")
    consumer = Consumer(settings)
    try:
        wanted = set(partitions or known)
        consumer.assign([TopicPartition(topic, partition, start) for partition in sorted(wanted)])
        for message in _Records(consumer, errors, wanted, max_messages, timeout_ms):
            print_record(message, as_json=as_json, key_separator=key_separator)
    finally:
        consumer.close()


class _Records:
    """Messages until the wanted number has come, or none came for the timeout; flushes stdout before it waits.

    The timeout runs only after each of `unheard`, the partitions, has given something or has been found empty.
    """

    def __init__(
        self, consumer: Consumer, errors: ClientErrors, unheard: set[int], max_messages: int | None, timeout_ms: int | None
    ) -> None:
        self._consumer, self._errors, self._unheard = consumer, errors, unheard
        self._left = max_messages
        self._timeout_s = float("inf") if timeout_ms is None else timeout_ms / 1000

    def __iter__(self) -> Iterator[Message]:
        quiet_since_s = time.monotonic()
        while self._left is None or self._left > 0:
            messages = self._poll()
            yield from messages
            if messages or self._unheard:
                quiet_since_s = time.monotonic()
                sys.stdout.flush()
            elif time.monotonic() - quiet_since_s >= self._timeout_s:
                return

    def _poll(self) -> list[Message]:
        from confluent_kafka import KafkaError

        messages = []
        polled = self._consumer.consume(_BATCH if self._left is None else min(self._left, _BATCH), _POLL_S)
        for message in polled:
            error, partition = message.error(), message.partition()
            if error is None:
                messages.append(message)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise CommandFailed(error.str())
            if partition is not None:
                self._unheard.discard(partition)
        if not polled:
            self._errors.check()
        if self._left is not None:
            self._left -= len(messages)
        return messages
