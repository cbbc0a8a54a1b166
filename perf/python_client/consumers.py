"""Share consumers that take one record at a time, of each client library.

Every consumer is a process. A unit is a record that was taken and accepted; `others` counts the
nanoseconds of processor time that the process has used for it. A latency is that of one turn: from
the call that accepts a record and asks for the next one, until that one is there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.workloads.client_process import Link, Work, WorkloadFailed
from kbroker.workloads.outcome import Outcome
from kbroker.workloads.settings import base
from kbroker.workloads.window import Client, Plan, measure

if TYPE_CHECKING:
    from kbroker_client import ShareConsumer

_POLL_S = 0.1


class Side(NamedTuple):
    """A client library, as it is measured. `packages`: the distributions whose versions tell."""

    key: str
    title: str
    packages: Sequence[str]
    work: Work


class _Turns:
    """Counts the turns of one consumer."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._cpu_ns = 0
        self._began_s = 0.0

    def begin(self) -> None:
        self._cpu_ns, self._began_s = time.process_time_ns(), time.monotonic()

    def end(self, records: int) -> None:
        """Also begins the next one."""
        now_s, cpu_ns = time.monotonic(), time.process_time_ns()
        self._link.count(records, others=cpu_ns - self._cpu_ns)
        self._link.latency(now_s, (now_s - self._began_s) * 1000)
        self._cpu_ns, self._began_s = cpu_ns, now_s


def one_at_a_time(
    plan: Plan, bootstrap: str, topic: str, group: str, side: Side, *, consumers: int, most: int
) -> Outcome:
    """`details["client_us"]`: processor time of the clients for each record. Raises
    WorkloadFailed."""
    arguments = {"bootstrap": bootstrap, "topic": topic, "group": group}
    window = measure(plan, [Client(side.work, arguments)] * consumers, most=most)
    records = window.sum([report.units for report in window.reports])
    cpu_ns = window.sum([report.others for report in window.reports])
    return window.outcome(client_us=cpu_ns / 1000 / max(1, records))


def _confluent(link: Link, arguments: Mapping[str, Any]) -> None:
    from confluent_kafka import ShareConsumer

    own = {
        **base(arguments["bootstrap"], {}),
        "group.id": arguments["group"],
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 1,
    }
    consumer = ShareConsumer(own)
    link.begin()
    consumer.subscribe([arguments["topic"]])
    while not (messages := list(consumer.poll(_POLL_S))):
        link.check_patience()
    consumer.acknowledge(messages[0])
    consumer.commit_sync()
    link.first()
    turns = _Turns(link)
    turns.begin()
    while link.running:
        messages = list(consumer.poll(_POLL_S))
        for message in messages:
            if (error := message.error()) is not None:
                raise WorkloadFailed(error.str())
            consumer.acknowledge(message)
        if messages:
            turns.end(len(messages))
    link.send_report()
    consumer.close()


def _ours(backend: str, link: Link, arguments: Mapping[str, Any]) -> None:
    import anyio

    anyio.run(_consume, link, arguments, backend=backend)


async def _consume(link: Link, arguments: Mapping[str, Any]) -> None:
    import anyio.to_thread

    from kbroker_client import ShareConsumer

    async with ShareConsumer(
        arguments["bootstrap"], group=arguments["group"], mode="explicit", max_poll_records=1
    ) as consumer:
        link.begin()
        consumer.subscribe([arguments["topic"]])
        while not (records := await consumer.poll(_POLL_S)):
            link.check_patience()
        consumer.acknowledge(records[0])
        await consumer.commit()
        await anyio.to_thread.run_sync(link.first)
        await _take_turns(link, consumer)


async def _take_turns(link: Link, consumer: ShareConsumer) -> None:
    turns = _Turns(link)
    turns.begin()
    while link.running:
        records = await consumer.poll(_POLL_S)
        for record in records:
            consumer.acknowledge(record)
        if records:
            turns.end(len(records))
    link.send_report()


SIDES = (
    Side("confluent-kafka", "confluent-kafka", ("confluent-kafka",), _confluent),
    Side("asyncio", "kbroker-client, asyncio", ("kbroker-client",), partial(_ours, "asyncio")),
    Side("trio", "kbroker-client, trio", ("kbroker-client", "trio"), partial(_ours, "trio")),
)
