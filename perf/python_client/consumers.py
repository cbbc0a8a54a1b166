"""Share consumers that take one record at a time, of each client library.

The consumers of a process are threads with confluent-kafka, and tasks of one event loop with
kbroker-client. A unit is a record that was taken and accepted; `others` counts the nanoseconds of
processor time that the process has used. A latency is that of one turn: from the call that accepts
a record and asks for the next one, until that one is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple

from perf.workloads.client_process import Link, Work, WorkloadFailed
from perf.workloads.outcome import WorkloadOutcome
from perf.workloads.settings import base
from perf.workloads.window import Client, Plan, measure

_POLL_S = 0.1


class Side(NamedTuple):
    """A client library, as it is measured. `packages`: the distributions whose versions tell."""

    key: str
    title: str
    packages: Sequence[str]
    work: Work


def one_at_a_time(
    plan: Plan,
    bootstrap: str,
    topic: str,
    group: str,
    side: Side,
    *,
    processes: int,
    consumers: int,
    most: int,
) -> WorkloadOutcome:
    """`consumers`: in each process. `details["client_us"]`: processor time of the clients for each
    record. Raises WorkloadFailed."""
    arguments = {"bootstrap": bootstrap, "topic": topic, "group": group, "consumers": consumers}
    window = measure(plan, [Client(side.work, arguments)] * processes, most=most)
    records = window.sum([report.units for report in window.reports])
    cpu_ns = window.sum([report.others for report in window.reports])
    return window.outcome(client_us=cpu_ns / 1000 / max(1, records))


class _Turns:
    """Counts the turns of all consumers of a process."""

    def __init__(self, link: Link) -> None:
        self._link, self._lock = link, threading.Lock()
        self._cpu_ns = time.process_time_ns()

    def end(self, began_s: float, records: int) -> float:
        """Returns the time, at which the consumer's next turn begins."""
        with self._lock:
            now_s, cpu_ns = time.monotonic(), time.process_time_ns()
            self._link.count(records, others=cpu_ns - self._cpu_ns)
            self._link.latency(now_s, (now_s - began_s) * 1000)
            self._cpu_ns = cpu_ns
        return now_s


# -- confluent-kafka
# --------------------------------------------------------------------------------------------------


def _confluent(link: Link, arguments: Mapping[str, Any]) -> None:
    from confluent_kafka import ShareConsumer

    own = {
        **base(arguments["bootstrap"], {}),
        "group.id": arguments["group"],
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 1,
    }
    consumers = [ShareConsumer(own) for _ in range(arguments["consumers"])]

    def begin(consumer: Any) -> None:  # noqa: ANN401
        consumer.subscribe([arguments["topic"]])
        while not (messages := _polled(consumer)):
            link.check_patience()
        consumer.acknowledge(messages[0])
        consumer.commit_sync()

    def take_turns(turns: _Turns, consumer: Any) -> None:  # noqa: ANN401
        began_s = time.monotonic()
        while link.running:
            messages = _polled(consumer)
            for message in messages:
                consumer.acknowledge(message)
            if messages:
                began_s = turns.end(began_s, len(messages))

    link.begin()
    with ThreadPoolExecutor(len(consumers)) as threads:
        _for_each(threads, begin, consumers)
        link.first()
        _for_each(threads, partial(take_turns, _Turns(link)), consumers)
        link.send_report()
        _for_each(threads, lambda consumer: consumer.close(), consumers)


def _for_each(threads: ThreadPoolExecutor, do: Callable[[Any], None], consumers: Sequence[Any]) -> None:
    for each in [threads.submit(do, consumer) for consumer in consumers]:
        each.result()


def _polled(consumer: Any) -> Sequence[Any]:  # noqa: ANN401
    messages = list(consumer.poll(_POLL_S))
    for message in messages:
        if (error := message.error()) is not None:
            raise WorkloadFailed(error.str())
    return messages


# -- kbroker-client
# --------------------------------------------------------------------------------------------------


def _ours(backend: str, link: Link, arguments: Mapping[str, Any]) -> None:
    import anyio

    anyio.run(_consume, link, arguments, backend=backend)


async def _consume(link: Link, arguments: Mapping[str, Any]) -> None:
    import anyio.to_thread

    from kbroker_client import ShareConsumer

    async def begin(consumer: ShareConsumer) -> None:
        consumer.subscribe([arguments["topic"]])
        while not (records := await consumer.poll(_POLL_S)):
            link.check_patience()
        consumer.acknowledge(records[0])
        await consumer.commit()

    async def take_turns(consumer: ShareConsumer, turns: _Turns) -> None:
        began_s = time.monotonic()
        while link.running:
            records = await consumer.poll(_POLL_S)
            for record in records:
                consumer.acknowledge(record)
            if records:
                began_s = turns.end(began_s, len(records))

    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                ShareConsumer(
                    arguments["bootstrap"], group=arguments["group"], mode="explicit", max_poll_records=1
                )
            )
            for _ in range(arguments["consumers"])
        ]
        link.begin()
        async with anyio.create_task_group() as tasks:
            for consumer in consumers:
                tasks.start_soon(begin, consumer)
        await anyio.to_thread.run_sync(link.first)
        turns = _Turns(link)
        async with anyio.create_task_group() as tasks:
            for consumer in consumers:
                tasks.start_soon(take_turns, consumer, turns)
        link.send_report()


SIDES = (
    Side("confluent-kafka", "confluent-kafka", ("confluent-kafka",), _confluent),
    Side("asyncio", "kbroker-client, asyncio", ("kbroker-client",), partial(_ours, "asyncio")),
    Side("trio", "kbroker-client, trio", ("kbroker-client", "trio"), partial(_ours, "trio")),
)
