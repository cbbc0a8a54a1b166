"""`kbroker demo`: a durable queue at work in under a minute, with the parts that a user has: a broker and Kafka's own clients.

Producing waits for acks=all, and then the broker is killed and started again. Consumers are processes of their own in one
share group on one partition, failures come back until the delivery limit, and the lag at the end is read from the broker's
directory on disk.
"""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from kbroker.cli.demo_orders import orders
from kbroker.cli.demo_view import Tally, View, open_view
from kbroker.cli.demo_worker import Progress, work
from kbroker.cli.exits import USAGE, CommandFailed
from kbroker.cli.output import human_bytes

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext
    from multiprocessing.queues import SimpleQueue

    from kbroker.client.broker_process import RunningBroker

TOPIC, GROUP = "orders", "order-workers"
DELIVERY_LIMIT = 5
_STALLED_S = 30.0
_TICK_S = 0.1


@click.command()
@click.option("--storage", default="segment", show_default=True, metavar="ENGINE", help="Engine for topic data and state.")
@click.option("--orders", "count", type=click.IntRange(min=1), default=50_000, show_default=True, help="Number of orders.")
@click.option("--consumers", type=click.IntRange(1, 100), default=4, show_default=True, help="Number of share consumers.")
def demo(storage: str, count: int, consumers: int) -> None:
    """Show a durable queue at work: a broker, 50 000 orders, four share consumers.

    Everything happens in a temporary directory and on a free port, and is gone at the end.
    """
    from kbroker import plugins
    from kbroker.client.broker_process import BrokerStartFailed, RunningBroker
    from kbroker.errors import OperatorError

    if storage == "memory":
        raise click.UsageError("the demo kills the broker, and the memory engine keeps nothing")
    try:
        plugins.log_store_factory(storage)
        plugins.state_store_factory(storage)
    except OperatorError as error:
        raise CommandFailed(str(error), USAGE) from error
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    with tempfile.TemporaryDirectory(prefix="kbroker-demo-") as home:
        broker = RunningBroker(Path(home), storage=storage)
        try:
            broker.start()
        except BrokerStartFailed as error:
            raise CommandFailed(str(error), error.exit_code or 1) from error
        try:
            click.echo(broker.ready_line)
            _run(broker, count, consumers)
            code = broker.terminate()
        finally:
            broker.kill()
    if code != 0:
        raise CommandFailed(f"the broker ended with exit code {code}")
    click.echo("the broker was stopped and ended cleanly")


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """A signal ends the demo as Ctrl-C does: the broker is stopped and its directory removed."""
    raise SystemExit(128 + number)


def _run(broker: RunningBroker, count: int, consumers: int) -> None:
    broker.create_topic(TOPIC)
    broker.set_group_config(GROUP, {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": str(DELIVERY_LIMIT)})
    with open_view(count, consumers) as view:
        produce_s = _produce(broker.bootstrap, count, view)
        view.say(_kill_and_restart(broker))
        tally = Tally(count, consumers)
        with _workers(broker.bootstrap, consumers) as reports:
            _watch(reports, tally, view)
            summary = Summary(tally, produce_s, broker.anonymous_memory_bytes(), lag_on_disk(broker.data_dir))
    summary.show()


def _kill_and_restart(broker: RunningBroker) -> str:
    broker.kill()
    started_s = time.monotonic()
    broker.start()
    return f"the broker was killed with kill -9 and is ready again after {time.monotonic() - started_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Summary:
    tally: Tally
    produce_s: float
    broker_bytes: int
    lag: int

    def show(self) -> None:
        total, tally = self.tally.total, self.tally
        seconds = max(tally.last_s - (tally.first_s or tally.last_s), 1e-9)
        rows = (
            ("orders produced (acks=all)", f"{tally.count:,} in {self.produce_s:.1f} s"),
            ("delivered to consumers", f"{total['delivered']:,} by {len(tally.by_worker)} consumers on one partition"),
            ("  consumer by consumer", " ".join(f"{tally.by_worker[n]:,}" for n in sorted(tally.by_worker))),
            ("  of these again, after a failure", f"{total['redelivered']:,}"),
            ("accepted", f"{total['accepted']:,}"),
            ("rejected (poison)", f"{total['rejected']:,}"),
            (f"archived after {DELIVERY_LIMIT} deliveries", f"{total['gave_up']:,}"),
            ("lag, read from disk", f"{self.lag:,}"),
            ("rate", f"{tally.finished / seconds:,.0f} orders/s"),
            ("memory of the broker", f"{human_bytes(self.broker_bytes)} anonymous"),
        )
        width = max(len(name) for name, _ in rows)
        click.echo()
        for name, text in rows:
            click.echo(f"{name.ljust(width)}  {text}")


def _produce(bootstrap: str, count: int, view: View) -> float:
    """Send all orders and wait until each is confirmed; returns seconds."""
    from confluent_kafka import Producer

    from kbroker.cli.produce import Outcome

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0})
    outcome, started_s, shown_s = Outcome(), time.monotonic(), 0.0
    for order in orders(count):
        producer.produce(TOPIC, order, on_delivery=outcome)
        producer.poll(0)
        if time.monotonic() - shown_s > _TICK_S:
            shown_s = time.monotonic()
            view.produced(outcome.confirmed)
    while producer.flush(_TICK_S):
        view.produced(outcome.confirmed)
        if time.monotonic() - started_s > _STALLED_S:
            raise CommandFailed("the broker does not confirm the orders")
    view.produced(outcome.confirmed)
    if outcome.failed:
        raise CommandFailed(f"{outcome.failed} orders were not confirmed: {outcome.first_error}")
    return time.monotonic() - started_s


@contextmanager
def _workers(bootstrap: str, consumers: int) -> Iterator[SimpleQueue[Progress]]:
    """Consumer processes, started afresh: a forked child could not use the producer's library any more."""
    context: SpawnContext = multiprocessing.get_context("spawn")
    reports, stop = context.SimpleQueue(), context.Event()
    arguments = (bootstrap, TOPIC, GROUP, DELIVERY_LIMIT, reports, stop)
    processes = [context.Process(target=work, args=(number, *arguments), daemon=True) for number in range(1, consumers + 1)]
    for process in processes:
        process.start()
    try:
        yield reports
    finally:
        stop.set()
        for process in processes:
            process.join(_STALLED_S)
            process.kill()


def _watch(reports: SimpleQueue[Progress], tally: Tally, view: View) -> None:
    """Until every order is finished. Raises CommandFailed when nothing moves any more."""
    moved_s = time.monotonic()
    while tally.finished < tally.count:
        if reports.empty():
            if time.monotonic() - moved_s > _STALLED_S:
                raise CommandFailed(f"no order was delivered for {_STALLED_S:.0f} s; {tally.count - tally.finished} are left")
            time.sleep(_TICK_S)
            view.consumed(tally)
            continue
        tally.add(reports.get())
        moved_s = time.monotonic()
    view.consumed(tally)


def lag_on_disk(data_dir: Path) -> int:
    """Orders that the group has not finished, as an offline reader sees it beside the live broker."""
    from kbroker.cli.storage import open_data_dir

    with open_data_dir(data_dir) as found:
        lags = [each.lag for each in found.inspect().share_partitions if each.group == GROUP]
    return sum(lag for lag in lags if lag is not None)
