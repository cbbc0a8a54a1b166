"""`kbroker share-consume`: take records from a topic as a member of a share group, and acknowledge
each one after it was printed.

In Kafka a new share group receives only records that are produced after its first fetch. People who
try a queue expect its present content. So a new group gets share.auto.offset.reset=earliest here,
unless --from is given; an existing group is not changed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.clients import SILENCE, ClientErrors, client_settings, print_record, require_topics, text_of
from kbroker.cli.exits import CommandFailed, say
from kbroker.cli.params import COUNT, Bootstrap, bootstrap_option, connect, not_blank
from kbroker.client.group_admin import kind_of_group
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from confluent_kafka import AcknowledgeType, Message, ShareConsumer

    from kbroker.client.rpc import Connection

RESET = "share.auto.offset.reset"
_POLL_S = 0.5
_MAX_POLL_RECORDS = 500


@click.command("share-consume")
@click.argument("topic")
@click.option(
    "--group", "-g", required=True, callback=not_blank, help="The share group; created if it does not exist."
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    help="Where a new group begins.  [default: earliest]",
)
@click.option("--max-messages", "-n", type=COUNT, help="End after this many records.")
@click.option(
    "--timeout-ms",
    type=COUNT,
    help="End when no record has arrived for this long.  [default: wait forever]",
)
@click.option(
    "--release",
    is_flag=True,
    help="Release every record after printing it: it is redelivered, until the delivery limit.",
)
@click.option(
    "--reject",
    is_flag=True,
    help="Reject every record after printing it: it is not redelivered; not with --release.",
)
@click.option("--key-separator", "-k", metavar="TEXT", help="Print the key and TEXT before each value.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object per record, as `kbroker consume --json` prints it, with delivery_count.",
)
@bootstrap_option
def share_consume(
    topic: str,
    group: str,
    start: str | None,
    max_messages: int | None,
    timeout_ms: int | None,
    release: bool,
    reject: bool,
    key_separator: str | None,
    as_json: bool,
    bootstrap: Bootstrap,
) -> None:
    """Print and acknowledge records as a member of a share group.

    Acquires records of TOPIC, prints each one and then accepts it, unless --release or --reject is
    given. Ctrl-C leaves the group cleanly. Records beyond --max-messages are released.

    A new group begins at the earliest record, unlike in Kafka: the command sets the group's
    share.auto.offset.reset if it is not set. An existing group resumes where it stopped.

    Of a payload of several gzip members, librdkafka's share consumer returns the first and
    acknowledges the records behind it unread. Queues are safe, as the broker stores such a batch as
    one frame there; on other topics use a worker with kbroker-client.
    """
    if release and reject:
        raise click.UsageError("--release and --reject exclude each other")
    from confluent_kafka import AcknowledgeType, ShareConsumer

    verdict = (
        AcknowledgeType.RELEASE if release else AcknowledgeType.REJECT if reject else AcknowledgeType.ACCEPT
    )
    errors = ClientErrors(bootstrap, group=group)
    settings = {
        **client_settings(bootstrap, errors),
        "logger": SILENCE,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": min(max_messages or _MAX_POLL_RECORDS, _MAX_POLL_RECORDS),
    }
    require_topics(bootstrap, [topic])
    with connect(bootstrap) as connection:
        begin_new_group(connection, group, start)
    consumer = ShareConsumer(settings)
    worker = _Worker(
        consumer, topic, group, errors, verdict, {"as_json": as_json, "key_separator": key_separator}
    )
    try:
        consumer.subscribe([topic])
        worker.run(max_messages, None if timeout_ms is None else timeout_ms / 1000)
    finally:
        consumer.close()
    if worker.failed:
        raise CommandFailed(f"{worker.failed} acknowledgements were refused: {worker.first_error}")


def begin_new_group(connection: Connection, group: str, start: str | None) -> None:
    """Let a group that does not exist yet begin at `start` (None: earliest, unless the group's
    config has another value)."""
    from kbroker.client import admin, group_admin

    try:
        group_admin.describe_share_group(connection, group)
    except KafkaError as error:
        if error.code is not ErrorCode.group_id_not_found:
            raise
        if other := group_admin.group_types(connection).get(group):
            hint = "; `kbroker consume --group` is for those" if other in ("classic", "consumer") else ""
            text = f"group {group} is {kind_of_group(other)}, and this command is for share groups{hint}"
            raise CommandFailed(text) from error
    else:
        if start is not None:
            say(f"share group {group} exists and resumes where it stopped: --from {start} has no effect")
        return
    if start is not None or not admin.has_group_config(connection, group, RESET):
        admin.alter_configs(
            connection, admin.ResourceType.GROUP, group, set_configs={RESET: start or "earliest"}
        )


class _Worker:
    """Polls, prints and acknowledges. Counts acknowledgements that the broker refused, for instance
    because a lock had expired."""

    def __init__(
        self,
        consumer: ShareConsumer,
        topic: str,
        group: str,
        errors: ClientErrors,
        verdict: AcknowledgeType,
        style: dict[str, Any],
    ) -> None:
        self._topic, self._group = topic, group
        self._consumer, self._errors, self._verdict, self._style = consumer, errors, verdict, style
        self.failed = 0
        self.first_error: str | None = None

    def run(self, max_messages: int | None, timeout_s: float | None) -> None:
        left, last_s = max_messages, time.monotonic()
        while left is None or left > 0:
            printed = self._poll_once(left)
            if printed:
                left, last_s = None if left is None else left - printed, time.monotonic()
                continue
            self._errors.check()
            if timeout_s is not None and time.monotonic() - last_s >= timeout_s:
                return

    def _poll_once(self, limit: int | None) -> int:
        """Releases surplus records: the broker may deliver more than `limit`, up to the end of a
        batch."""
        from confluent_kafka import AcknowledgeType

        printed = 0
        for message in self._polled():
            if (error := message.error()) is not None:
                raise CommandFailed(text_of(error, "read", topic=self._topic, group=self._group))
            if limit is not None and printed == limit:
                self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
                continue
            print_record(message, **self._style, delivery_count=message.delivery_count())
            printed += 1
            self._consumer.acknowledge(message, self._verdict)
        if printed:
            sys.stdout.flush()
            self._commit()
        return printed

    def _polled(self) -> Iterable[Message]:
        """Raises CommandFailed after a fatal error of the library, for instance because the group
        is full."""
        from confluent_kafka import KafkaException

        try:
            return self._consumer.poll(_POLL_S)
        except KafkaException as error:
            raise CommandFailed(
                text_of(error.args[0], "read", topic=self._topic, group=self._group)
            ) from error

    def _commit(self) -> None:
        for partition, error in self._consumer.commit_sync().items():
            if error is not None:
                self.failed += 1
                self.first_error = (
                    self.first_error or f"partition {partition.partition}: {error.args[0].str()}"
                )
