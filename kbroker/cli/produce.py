"""`kbroker produce`: sends lines as records. The command ends when the broker has confirmed each of
them (acks=all)."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import click

from kbroker.cli.clients import MAX_MESSAGE_BYTES, ClientErrors, client_settings, text_of
from kbroker.cli.exits import CommandFailed
from kbroker.cli.interrupts import Deferred
from kbroker.cli.params import COUNT, INDEX, Bootstrap, bootstrap_option, connect, not_empty
from kbroker.errors import OperatorError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_PROGRESS_INTERVAL_S = 0.1
_REFUSED_S = 5.0
"""A full disk that refused everything for so long is the outcome."""
_TOO_LARGE = "MSG_SIZE_TOO_LARGE"
_INVALID = "INVALID_RECORD"


class _Refusals:
    """Finds out why no record is confirmed. librdkafka repeats what a broker with a full disk
    refuses, and says only that the time is over."""

    def __init__(self, bootstrap: Bootstrap, topic: str, outcome: ProduceCounts) -> None:
        self._bootstrap, self._topic, self._outcome = bootstrap, topic, outcome
        self._confirmed = 0
        self._since_s = self._asked_s = time.monotonic()

    def check(self) -> str | None:
        """The broker's refusal, if it has confirmed nothing and refused everything for
        _REFUSED_S."""
        now_s = time.monotonic()
        if self._outcome.confirmed != self._confirmed:
            self._confirmed, self._since_s = self._outcome.confirmed, now_s
        if now_s - self._since_s < _REFUSED_S or now_s - self._asked_s < 1:
            return None
        self._asked_s = now_s
        return self._why()

    def _why(self) -> str | None:
        """Asked with a request that has no records: a broker with room refuses that differently."""
        from kbroker.errors import ErrorCode, KafkaError

        rows = [{"name": self._topic, "partition_data": [{"index": 0, "records": None}]}]
        try:
            with connect(self._bootstrap) as connection:
                answer = connection.call(
                    "produce", 9, transactional_id=None, acks=-1, timeout=1000, topic_data=rows
                )
        except (OperatorError, KafkaError):
            return None
        (row,) = answer.responses[0].partition_responses
        is_full = row.error_code == ErrorCode.kafka_storage_error
        return (row.error_message or ErrorCode.kafka_storage_error.name) if is_full else None


class ProduceCounts:
    """Counts records that the broker confirmed and refused."""

    def __init__(self) -> None:
        self.confirmed = 0
        self.failed = 0
        self.first_error: str | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.confirmed += 1
            return
        self.failed += 1
        if self.first_error is None:
            self.first_error = text_of(error, "write", topic=message.topic())
            if error.name() == _TOO_LARGE:
                topic = shlex.quote(message.topic() or "")
                self.first_error += (
                    f"; max.message.bytes of the topic is the bound: `kbroker configs set --topic {topic} "
                    "max.message.bytes=...` raises it"
                )
            elif error.name() == _INVALID:  # librdkafka drops the broker's own words.
                self.first_error += "; a compacted topic refuses records without a key, and their batch"


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--key-separator",
    "-k",
    metavar="TEXT",
    callback=not_empty,
    help="The text before the first TEXT in a line is the record's key; a line without TEXT has no key.",
)
@click.option("--partition", "-p", type=INDEX, help="Send everything to this partition.")
@click.option(
    "--compression",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="Codec of the record batches.",
)
@click.option(
    "--timeout-ms", type=COUNT, default=30_000, show_default=True, help="Time limit for sending a record."
)
@bootstrap_option
def produce(
    topic: str,
    file: IO[bytes],
    key_separator: str | None,
    partition: int | None,
    compression: str,
    timeout_ms: int,
    bootstrap: Bootstrap,
) -> None:
    """Send the lines of a file, or of standard input, as records.

    Each line of FILE becomes a record of TOPIC, from an idempotent producer. The command ends when
    every record is confirmed (acks=all), with exit code 1 if any was refused.
    """
    where = {} if partition is None else {"partition": partition}
    records = ({"key": key, "value": value, **where} for key, value in _records(file, key_separator))
    send_records(bootstrap, topic, records, compression=compression, timeout_ms=timeout_ms)


def send_records(
    bootstrap: Bootstrap,
    topic: str,
    records: Iterable[Mapping[str, Any]],
    *,
    compression: str = "none",
    timeout_ms: int,
    noun: str = "record",
) -> None:
    """Send records, given as arguments of Producer.produce, and print a summary. Returns when the
    broker has confirmed every record (acks=all). Raises CommandFailed if any is not confirmed.
    `noun`: the summary's word for a record."""
    from confluent_kafka import Producer

    errors = ClientErrors(bootstrap)
    settings = {
        **client_settings(bootstrap, errors),
        "enable.idempotence": True,
        "compression.type": compression,
        "message.timeout.ms": timeout_ms,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "linger.ms": 5,
    }
    producer, outcome, started = Producer(settings), ProduceCounts(), time.monotonic()
    refusals = _Refusals(bootstrap, topic, outcome)
    show, signals = _progress(outcome, noun), Deferred().install()
    refusal: str | None = None
    try:
        for record in records:
            refusal = _send(producer, signals, refusals, topic, on_delivery=outcome, **record)
            show()
            if refusal is not None:
                break
        while refusal is None and _flush(producer, signals, topic):
            show()
            refusal = refusals.check()
        if refusal is not None:
            outcome.failed += len(producer)
    finally:
        signals.remove()
        producer.poll(0)  # The broker may have confirmed more while the input was waited for.
        say_summary(topic, outcome, time.monotonic() - started, noun)
    if outcome.failed:
        was = "was" if outcome.failed == 1 else "were"
        why = refusal or outcome.first_error
        raise CommandFailed(f"{_counted(outcome.failed, noun)} {was} not confirmed: {why}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def say_summary(topic: str, outcome: ProduceCounts, seconds: float, noun: str = "record") -> None:
    """Print on stderr how many records were confirmed, and how fast."""
    over_progress = "\r" if sys.stderr.isatty() else ""
    click.echo(
        f"{over_progress}{_counted(outcome.confirmed, noun)} confirmed in {topic}, {outcome.failed} failed, "
        f"{seconds:.2f} s, {outcome.confirmed / max(seconds, 1e-9):.0f} {noun}s/s",
        err=True,
    )


def _send(
    producer: Producer,
    signals: Deferred,
    refusals: _Refusals,
    topic: str,
    **record: Any,  # noqa: ANN401 (what Producer.produce takes)
) -> str | None:
    """Returns the broker's refusal, if it takes no records, and so there is no room for this
    one."""
    from confluent_kafka import KafkaException

    while True:
        with signals:
            try:
                producer.produce(topic, **record)
            except BufferError:
                producer.poll(_PROGRESS_INTERVAL_S)
                if (refusal := refusals.check()) is not None:
                    return refusal
                continue
            except KafkaException as error:
                raise CommandFailed(text_of(error.args[0], "write", topic=topic)) from error
            producer.poll(0)
            return None


def _flush(producer: Producer, signals: Deferred, topic: str) -> int:
    """Flush for a moment; returns how many records are left. Raises CommandFailed after a fatal
    error of the library."""
    from confluent_kafka import KafkaException

    with signals:
        try:
            return producer.flush(_PROGRESS_INTERVAL_S)
        except KafkaException as error:
            raise CommandFailed(text_of(error.args[0], "write", topic=topic)) from error


def _records(file: IO[bytes], key_separator: str | None) -> Iterator[tuple[bytes | None, bytes]]:
    separator = None if key_separator is None else key_separator.encode()
    for line in file:
        content = line.rstrip(b"\r\n") if line.endswith(b"\n") else line
        if separator is None or separator not in content:
            yield None, content
        else:
            key, _, value = content.partition(separator)
            yield key, value


def _progress(outcome: ProduceCounts, noun: str) -> Callable[[], None]:
    """Shows the number of confirmed records while they are sent, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return lambda: None
    shown_at = time.monotonic()

    def show() -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _PROGRESS_INTERVAL_S:
            shown_at = time.monotonic()
            click.echo(f"\r{_counted(outcome.confirmed, noun)} confirmed", err=True, nl=False)

    return show
