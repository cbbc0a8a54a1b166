"""`kbroker consume`: read topics as logs, from an offset onward; with `--group` as a member of a
consumer group."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.clients import READING, ClientErrors, client_settings, print_record, require_topics
from kbroker.cli.consume_group import Membership, consume_as_member
from kbroker.cli.consumed import Batches, Ends
from kbroker.cli.exits import OK, CommandFailed
from kbroker.cli.params import COUNT, Bootstrap, bootstrap_option, not_empty, partitions_option
from kbroker.cli.unread_batches import UnreadBatches

if TYPE_CHECKING:
    from confluent_kafka import Message

EARLIEST, LATEST = "earliest", "latest"


class Start(click.ParamType["str | int"]):
    """`earliest`, `latest` or an offset."""

    name = "earliest|latest|OFFSET"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> str | int:
        text = str(value)
        if text in (EARLIEST, LATEST):
            return text
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 1 << 63):
            self.fail(f"{text!r} is neither earliest nor latest nor an offset", param, context)
        return int(text)


@click.command()
@click.argument("topic", nargs=-1, required=True)
@click.option(
    "--group",
    "-g",
    callback=not_empty,
    help="Read as a member of this consumer group, and commit the offsets of printed records.",
)
@click.option(
    "--group-protocol",
    type=click.Choice(["classic", "consumer"]),
    help="Protocol of the member; consumer: KIP-848, where the broker assigns partitions.  "
    "[default: classic]",
)
@click.option(
    "--from",
    "start",
    type=Start(),
    help="Where to begin in each partition; in a group only in those without a committed offset, "
    "and no OFFSET.  [default: earliest; in a group latest]",
)
@click.option("--from-beginning", is_flag=True, help="The same as --from earliest.")
@partitions_option("Read only this partition; may be repeated; not with --group.")
@click.option("--max-messages", "-n", type=COUNT, help="End after this many records.")
@click.option(
    "--timeout-ms",
    type=COUNT,
    help="End when no record has arrived for this long, in a group from the assignment of "
    "partitions on.  [default: wait forever]",
)
@click.option("--key-separator", "-k", metavar="TEXT", help="Print the key and TEXT before each value.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object per record: topic, partition, offset, timestamp_ms, key, value, headers. "
    "Bytes that are no UTF-8 come as key_base64 and value_base64.",
)
@bootstrap_option
def consume(
    topic: tuple[str, ...],
    group: str | None,
    group_protocol: str | None,
    start: str | int | None,
    from_beginning: bool,
    partitions: tuple[int, ...],
    max_messages: int | None,
    timeout_ms: int | None,
    key_separator: str | None,
    as_json: bool,
    bootstrap: Bootstrap,
) -> int:
    """Print records of topics, from an offset onward or as a member of a group.

    Prints the records of each TOPIC, one per line, and waits for new ones. Without --group nothing
    is committed or acknowledged.

    With --group the member reads its share of the partitions, resumes at the committed offsets, and
    commits after printing: if it dies in between, records are printed twice, but none is lost. A
    TOPIC that begins with ^ is then a regular expression, which also matches later topics. On
    Ctrl-C, SIGTERM or the SIGHUP of a closed terminal it commits and leaves the group; the exit
    code is 130 or 143. After a second signal it no longer waits for its output to be read, and does
    not commit unread records.

    Batches whose payload is several compressed frames, such as gzip members, are printed to their
    end. librdkafka, the library of many clients, fetches such a batch again and again.

    \b
    Examples:
      kbroker consume orders --from latest
      kbroker consume orders returns --group billing --from-beginning
      kbroker consume '^orders.*' --group billing --group-protocol consumer
    """
    if from_beginning and start is not None:
        raise click.UsageError("--from and --from-beginning exclude each other")
    start = EARLIEST if from_beginning else start
    ends = Ends(max_messages, timeout_ms)
    show = partial(print_record, as_json=as_json, key_separator=key_separator)
    if group is None:
        if group_protocol is not None:
            raise click.UsageError("--group-protocol needs --group")
        _consume_log(bootstrap, topic, partitions, EARLIEST if start is None else start, ends, show)
        return OK
    if partitions or isinstance(start, int):
        raise click.UsageError("--group excludes --partition and --from OFFSET: the group decides on them")
    return consume_as_member(
        bootstrap, Membership(group, group_protocol or "classic", topic, start or LATEST), ends, show
    )


def _consume_log(
    bootstrap: Bootstrap,
    topics: Sequence[str],
    partitions: Sequence[int],
    start: str | int,
    ends: Ends,
    show: Callable[[Message], None],
) -> None:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition

    errors = ClientErrors(bootstrap)
    unread = UnreadBatches(bootstrap)
    settings: dict[str, Any] = {
        **client_settings(bootstrap, errors),
        **READING,
        **unread.settings,
        "group.id": "kbroker-consume",  # required by the library; no group is joined and no offset committed
        "auto.offset.reset": "error",
    }
    known = require_topics(bootstrap, topics)
    for name, numbers in known.items():
        if missing := sorted(set(partitions) - set(numbers)):
            raise CommandFailed(f"topic {name} has no partition {missing[0]} (it has {len(numbers)})")
    wanted = {(name, number) for name, numbers in known.items() for number in partitions or numbers}
    offset = start if isinstance(start, int) else {EARLIEST: OFFSET_BEGINNING, LATEST: OFFSET_END}[start]
    consumer = Consumer(settings)
    batches = Batches(consumer, errors, ends, unread)
    batches.assign(wanted)
    try:
        consumer.assign([TopicPartition(name, number, offset) for name, number in sorted(wanted)])
        for messages in batches:
            for message in messages:
                show(message)
            sys.stdout.flush()
    finally:
        consumer.close()
