"""`python -m perf.workloads`: measures kbroker or another broker that speaks Kafka's protocol.
README.md explains the figures."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import click

from kbroker.cli import CONTEXT
from kbroker.cli.params import COUNT, FiniteRange, not_empty
from kbroker.cli.produce import CODECS
from kbroker.cli.suggesting import SuggestingGroup
from perf.workloads.setup import Setup, measured

if TYPE_CHECKING:
    from perf.workloads.latency import Via
    from perf.workloads.share import Mode

CLIENTS = click.IntRange(1, 256)
RECORD_BYTES = click.IntRange(1, 10_000_000)
SHARE = FiniteRange(0, 0.5)
MANY = 1_000_000
ACKS = ("all", "1", "0")

record_bytes_option = click.option(
    "--record-bytes", type=RECORD_BYTES, default=100, show_default=True, help="Size of each value."
)
records_option = click.option(
    "--records",
    type=COUNT,
    default=MANY,
    show_default=True,
    help="Number of records to write beforehand to a topic that the command creates.",
)
compression_option = click.option(
    "--compression",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="Codec of the batches.",
)
acks_option = click.option(
    "--acks", type=click.Choice(ACKS), default="all", show_default=True, help="The producers' acks."
)


@click.group(cls=SuggestingGroup, context_settings=dict(CONTEXT))
def workloads() -> None:
    """Measure a broker: produce, fetch, share-consume and latency.

    Works against any broker that speaks Kafka's protocol. Each client is a process with the
    ordinary client library. perf/workloads/README.md explains the figures.
    """


@workloads.command()
@measured
@record_bytes_option
@click.option(
    "--batch-bytes", type=COUNT, default=1_000_000, show_default=True, help="The producers' batch.size."
)
@click.option(
    "--linger-ms",
    type=FiniteRange(0, 900_000),
    default=5,
    show_default=True,
    help="The producers' linger.ms.",
)
@compression_option
@acks_option
@click.option("--producers", type=CLIENTS, default=1, show_default=True, help="A process for each.")
@click.option("--idempotence", is_flag=True, help="With producer ids and sequence numbers.")
def produce(
    setup: Setup,
    record_bytes: int,
    batch_bytes: int,
    linger_ms: float,
    compression: str,
    acks: str,
    producers: int,
    idempotence: bool,
) -> None:
    """Producers at full speed: records that the broker confirmed.

    \b
    Examples:
      python -m perf.workloads produce
      python -m perf.workloads produce --record-bytes 1000 --partitions 6 --compression lz4
    """
    from perf.workloads.produce import produce as workload

    if idempotence and acks != "all":
        raise click.UsageError("--idempotence needs --acks all")
    with setup.working_topic() as topic:
        outcome = setup.measure(
            lambda: workload(
                setup.plan(),
                str(setup.bootstrap),
                topic,
                record_bytes=record_bytes,
                batch_bytes=batch_bytes,
                linger_ms=linger_ms,
                compression=compression,
                acks=acks,
                producers=producers,
                idempotence=idempotence,
                settings=setup.client_settings(),
            )
        )
    setup.show(outcome)


@workloads.command()
@measured
@record_bytes_option
@records_option
@compression_option
@click.option(
    "--consumers",
    type=CLIENTS,
    default=1,
    show_default=True,
    help="A process for each; partitions are divided among them.",
)
@click.option(
    "--max-partition-bytes",
    type=COUNT,
    default=8 << 20,
    show_default=True,
    help="The consumers' max.partition.fetch.bytes.",
)
def fetch(
    setup: Setup, record_bytes: int, records: int, compression: str, consumers: int, max_partition_bytes: int
) -> None:
    """Consumers without a group at full speed, reading a topic from its beginning again and again.

    \b
    Examples:
      python -m perf.workloads fetch --record-bytes 1000 --partitions 6 --consumers 2
      python -m perf.workloads fetch --topic orders
    """
    from perf.workloads.fetch import fetch as workload

    with setup.working_topic() as topic:
        if setup.topic is None:
            setup.fill(topic, records, record_bytes, compression=compression)
        outcome = setup.measure(
            lambda: workload(
                setup.plan(),
                str(setup.bootstrap),
                topic,
                consumers=consumers,
                max_partition_bytes=max_partition_bytes,
                settings=setup.client_settings(),
            )
        )
    setup.show(outcome)


@workloads.command("share-consume")
@measured
@record_bytes_option
@records_option
@click.option(
    "--small-batches", is_flag=True, help="Write them in batches of 1, 2 and 3 records instead of about 1 MB."
)
@click.option(
    "--group", "-g", callback=not_empty, help="The share group.  [default: a new one, deleted afterwards]"
)
@click.option("--consumers", type=CLIENTS, default=1, show_default=True, help="A process for each.")
@click.option(
    "--mode",
    type=click.Choice(["implicit", "explicit"]),
    default="implicit",
    show_default=True,
    help="implicit: the next poll accepts the records of the last one; explicit: each is "
    "acknowledged by a call.",
)
@click.option(
    "--release",
    type=SHARE,
    default=0.0,
    show_default=True,
    help="Share of the records that are released; needs --mode explicit.",
)
@click.option(
    "--reject", type=SHARE, default=0.0, show_default=True, help="Share of the records that are rejected."
)
@click.option(
    "--max-poll-records", type=COUNT, default=500, show_default=True, help="The consumers' max.poll.records."
)
@click.option(
    "--sync",
    is_flag=True,
    help="Wait for the acknowledgements of each poll (commit_sync), and print how long that takes.",
)
@click.option(
    "--think-ms",
    type=FiniteRange(0, 60_000),
    default=0.0,
    show_default=True,
    help="Simulated work for each record.",
)
def share_consume(
    setup: Setup,
    record_bytes: int,
    records: int,
    small_batches: bool,
    group: str | None,
    consumers: int,
    mode: str,
    release: float,
    reject: float,
    max_poll_records: int,
    sync: bool,
    think_ms: float,
) -> None:
    """Members of a share group at full speed: records that were accepted or rejected.

    The window opens when every member has had its first record, and closes early when the records
    are nearly used up. A poll returns whole batches, whatever --max-poll-records is.

    \b
    Examples:
      python -m perf.workloads share-consume --consumers 8
      python -m perf.workloads share-consume --small-batches --max-poll-records 1 --think-ms 5
    """
    from perf.workloads.fill import record_count
    from perf.workloads.share import Mix
    from perf.workloads.share import share_consume as workload

    if (release or reject) and mode != "explicit":
        raise click.UsageError("--release and --reject need --mode explicit")
    with setup.working_topic() as topic, setup.working_group(group) as group_id:
        if setup.topic is None:
            setup.fill(topic, records, record_bytes, small=small_batches)
        outcome = setup.measure(
            lambda: workload(
                setup.plan(),
                str(setup.bootstrap),
                topic,
                group_id,
                consumers=consumers,
                mode=cast("Mode", mode),
                verdicts=Mix(release, reject) if release or reject else None,
                max_poll_records=max_poll_records,
                sync=sync,
                think_s=think_ms / 1000,
                most=record_count(str(setup.bootstrap), topic, settings=setup.client_settings()),
                settings=setup.client_settings(),
            )
        )
    setup.show(outcome)


@workloads.command()
@measured
@click.option(
    "--rate",
    type=FiniteRange(0.1, 1_000_000),
    default=1000.0,
    show_default=True,
    help="Records a second.",
)
@click.option(
    "--record-bytes",
    type=click.IntRange(16, 10_000_000),
    default=100,
    show_default=True,
    help="Size of each value.",
)
@acks_option
@click.option(
    "--via",
    type=click.Choice(["consumer", "share"]),
    default="consumer",
    show_default=True,
    help="What reads the records: a consumer without a group, or a member of a share group.",
)
def latency(setup: Setup, rate: float, record_bytes: int, acks: str, via: str) -> None:
    """From the moment a record is due to be sent until a consumer has it, at a fixed rate.

    Prints percentiles of that time. --record-bytes is at least 16.

    \b
    Examples:
      python -m perf.workloads latency --rate 1000 --seconds 30
      python -m perf.workloads latency --rate 100 --via share
    """
    from perf.workloads.latency import latency as workload

    with contextlib.ExitStack() as stack:
        topic = stack.enter_context(setup.working_topic())
        group = stack.enter_context(setup.working_group(None)) if via == "share" else None
        outcome = setup.measure(
            lambda: workload(
                setup.plan(),
                str(setup.bootstrap),
                topic,
                rate_per_s=rate,
                record_bytes=record_bytes,
                acks=acks,
                via=cast("Via", via),
                group=group,
                settings=setup.client_settings(),
            )
        )
    setup.show(outcome)
