"""`kbroker consume`: read a topic as a log, from an offset on. Takes nothing away and commits nothing."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from kbroker.cli.clients import MAX_MESSAGE_BYTES, ClientErrors, client_settings, print_record, require_topics
from kbroker.cli.exits import CommandFailed
from kbroker.cli.params import Address, bootstrap_option

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
        if not (text.isascii() and text.isdigit()):
            self.fail(f"{text!r} is neither earliest nor latest nor an offset", param, context)
        return int(text)


@click.command()
@click.argument("topic")
@click.option("--from", "start", type=Start(), default="earliest", show_default=True, help="Where to begin, in every partition.")
@click.option("--partition", "-p", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition; may be repeated.")
@click.option("--max-messages", "-n", type=click.IntRange(min=1), help="End after this many records.")
@click.option("--timeout-ms", type=click.IntRange(min=1), help="End when no record has come for this long.  [default: wait forever]")
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
        "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
        "fetch.wait.max.ms": 200,
    }
    known = require_topics(bootstrap, [topic])[topic]
    if missing := sorted(set(partitions) - set(known)):
        raise CommandFailed(f"topic {topic} has no partition {missing[0]} (it has {len(known)})")
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition in partitions or known])
        for message in _Records(consumer, errors, max_messages, timeout_ms):
            print_record(message, as_json=as_json, key_separator=key_separator)
    finally:
        consumer.close()


class _Records:
    """Messages until the wanted number has come or none came for the timeout; flushes stdout before it waits."""

    def __init__(self, consumer: Consumer, errors: ClientErrors, max_messages: int | None, timeout_ms: int | None) -> None:
        self._consumer, self._errors = consumer, errors
        self._left, self._timeout_s = max_messages, None if timeout_ms is None else timeout_ms / 1000

    def __iter__(self) -> _Records:
        self._batch: list[Message] = []
        return self

    def __next__(self) -> Message:
        if self._left == 0:
            raise StopIteration
        if not self._batch:
            self._batch = self._next_batch()[::-1]
        message = self._batch.pop()
        if self._left is not None:
            self._left -= 1
        return message

    def _next_batch(self) -> list[Message]:
        sys.stdout.flush()
        limit_s = float("inf") if self._timeout_s is None else time.monotonic() + self._timeout_s
        while True:
            batch = self._consumer.consume(_BATCH if self._left is None else min(self._left, _BATCH), _POLL_S)
            for message in batch:
                if (error := message.error()) is not None:
                    raise CommandFailed(error.str())
            if batch:
                return batch
            self._errors.check()
            if time.monotonic() >= limit_s:
                raise StopIteration
