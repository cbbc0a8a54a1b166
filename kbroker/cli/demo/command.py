"""`kbroker demo`: a durable queue at work in under a minute, with the same parts as in production:
a broker and ordinary Kafka clients.

The producer waits for acks=all. The consumers are separate processes in one share group on one
partition. First a consumer is killed, then the broker, each while orders are in flight. Orders that
fail are redelivered up to the delivery limit. The tally records the fate of each order. At the end
the lag is read from the broker's directory on disk.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from kbroker.cli.demo.orders import orders
from kbroker.cli.demo.tally import FinishedTwice, Tally
from kbroker.cli.demo.team import Team
from kbroker.cli.demo.view import View, open_view
from kbroker.cli.demo.worker import Taken
from kbroker.cli.exits import USAGE, CommandFailed
from kbroker.cli.interrupts import Deferred
from kbroker.cli.output import human_bytes

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from kbroker.client.broker_process import RunningBroker

TOPIC, GROUP = "orders", "order-workers"
DELIVERY_LIMIT = 5
_BATCH_ORDERS = 250  # a poll returns whole batches: small ones, so that every consumer receives some
_STALLED_S = 30.0
_ALL_HOLD_S = 1.0
_TICK_S = 0.1
_EACH_SHOWN = 6
_STEPS = """
To continue with a broker that keeps running (all pages: {kbroker} docs):
  {kbroker} start --data-dir data &    # wait until it says it is ready
  {kbroker} topics create orders
  seq 5 | {kbroker} produce orders
  {kbroker} share-consume orders --group workers    # end it with Ctrl-C
  {kbroker} share-groups describe workers"""


@click.command()
@click.option(
    "--storage",
    default="segment",
    show_default=True,
    metavar="ENGINE",
    help="Engine for topic data and state.",
)
@click.option(
    "--orders",
    "count",
    type=click.IntRange(min=1),
    default=50_000,
    show_default=True,
    help="Number of orders.",
)
@click.option(
    "--consumers",
    type=click.IntRange(1, 100),
    default=4,
    show_default=True,
    help="Number of share consumers.",
)
@click.option(
    "--protocol",
    type=click.Choice(["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], case_sensitive=False),
    default="PLAINTEXT",
    show_default=True,
    help="How the clients connect: with TLS, with a log-in, or both. TLS needs the extra kbroker[security].",
)
def demo(storage: str, count: int, consumers: int, protocol: str) -> None:
    """Show a durable queue at work: a broker, 50 000 orders, four share consumers.

    A quarter of the way a consumer is killed, halfway the broker; both have orders in flight then.
    Some orders fail and are redelivered, some reach the delivery limit, and poison is rejected. An
    order that is delivered after it was finished ends the demo with exit code 1. The demo uses a
    temporary directory, which it removes at the end, and a free port.
    """
    from kbroker import plugins
    from kbroker.client.broker_process import BrokerStartFailed, RunningBroker
    from kbroker.errors import OperatorError

    if storage == "memory":
        raise click.UsageError("the demo kills the broker, and the memory engine does not survive that")
    try:
        plugins.log_store_factory(storage)
        plugins.state_store_factory(storage)
    except OperatorError as error:
        raise CommandFailed(str(error), USAGE) from error
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    signals = Deferred((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)).install()
    with tempfile.TemporaryDirectory(prefix="kbroker-demo-") as home:
        try:
            broker = RunningBroker(Path(home), storage=storage, protocol=protocol)
        except OperatorError as error:
            raise CommandFailed(str(error), USAGE) from error
        try:
            broker.start()
            how = "" if protocol == "PLAINTEXT" else f" by {protocol}"
            click.echo(f"broker ready on {broker.bootstrap}{how}, data in {broker.data_dir}")
            _run(broker, count, consumers, signals)
            code = broker.terminate()
        except BrokerStartFailed as error:
            raise CommandFailed(str(error), error.exit_code or 1) from error
        finally:
            broker.kill()
    if code != 0:
        raise CommandFailed(f"the broker ended with exit code {code}")
    click.echo("the broker was stopped and ended cleanly; its directory is removed")
    click.echo(next_steps())


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Lets a signal end the demo as Ctrl-C does: the broker is stopped and its directory
    removed."""
    raise SystemExit(128 + number)


def _run(broker: RunningBroker, count: int, consumers: int, signals: Deferred) -> None:
    broker.create_topic(TOPIC)
    broker.set_group_config(
        GROUP, {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": str(DELIVERY_LIMIT)}
    )
    tally = Tally(count, DELIVERY_LIMIT)
    with open_view(count, consumers) as view:
        produce_s = _produce(broker.client_settings(), count, view, signals)
        with Team(broker.client_settings(), TOPIC, GROUP, signals) as team:
            for _ in range(consumers):
                team.hire()
            started_s = time.monotonic()
            try:
                DemoWork(broker, team, tally, view).until_all_is_done()
            except FinishedTwice as error:
                raise CommandFailed(str(error)) from error
            work_s = time.monotonic() - started_s
            summary = DemoSummary(
                tally, produce_s, work_s, broker.anonymous_memory_bytes(), lag_on_disk(broker.data_dir)
            )
    click.echo()
    for line in summary.lines():
        click.echo(line)


class DemoWork:
    """Runs the consumers and the two kills: a consumer after a quarter of the orders, the broker
    after half."""

    def __init__(self, broker: RunningBroker, team: Team, tally: Tally, view: View) -> None:
        self._broker, self._team, self._tally, self._view = broker, team, tally, view
        self._strikes = [(tally.count // 4, self._kill_a_consumer), (tally.count // 2, self._kill_the_broker)]
        self._waiting: list[int] = []
        """Consumers that hold orders and wait for permission to acknowledge, in the order of their
        reports."""

    def until_all_is_done(self) -> None:
        """Raises FinishedTwice, and CommandFailed when there is no more progress."""
        tally, moved_s = self._tally, time.monotonic()
        while tally.finished < tally.count:
            if self._take_reports(_TICK_S):
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > _STALLED_S:
                raise CommandFailed(
                    f"no order was delivered for {_STALLED_S:.0f} s; {tally.count - tally.finished} are left"
                )
            elif (
                tally.open
                and tally.finished + len(tally.open) == tally.count
                and lag_on_disk(self._broker.data_dir) == 0
            ):
                tally.nothing_is_left()
            if self._waiting and self._strikes and len(tally.seen) >= self._strikes[0][0]:
                self._wait_until_all_hold_orders()
                self._strikes.pop(0)[1]()
            self._give_leave()
            self._view.consumed(tally)

    def _take_reports(self, timeout_s: float) -> bool:
        found = False
        for number, report in self._team.reports(timeout_s):
            found = True
            if isinstance(report, Taken):
                self._tally.taken(number, report.orders)
                self._waiting.append(number)
            else:
                self._tally.answered(number, confirmed=report.confirmed)
        return found

    def _wait_until_all_hold_orders(self) -> None:
        """Waits at most a second: near the end there may not be enough orders for all."""
        deadline_s = time.monotonic() + _ALL_HOLD_S
        while len(self._waiting) < len(self._team.numbers) and (left_s := deadline_s - time.monotonic()) > 0:
            self._take_reports(left_s)

    def _give_leave(self) -> None:
        for number in self._waiting:
            self._team.give_leave(number)
        self._waiting.clear()

    def _kill_a_consumer(self) -> None:
        victim = self._waiting.pop(0)
        self._team.kill(victim)
        held = len(self._tally.struck(victim).held)
        self._tally.in_hand.pop(victim)
        self._view.say(
            f"consumer {victim} killed with kill -9, {held:,} orders held; consumer "
            f"{self._team.hire()} replaces it"
        )

    def _kill_the_broker(self) -> None:
        self._broker.kill()
        strike = self._tally.struck(*self._team.numbers)
        self._view.say(
            f"broker killed with kill -9, {len(strike.held):,} orders in flight to {len(self._waiting)} "
            "consumers"
        )
        self._give_leave()
        started_s = time.monotonic()
        self._broker.start()
        self._view.say(
            f"broker ready again after {time.monotonic() - started_s:.1f} s, with the same directory"
        )


def _produce(client_settings: Mapping[str, str], count: int, view: View, signals: Deferred) -> float:
    """Send all orders and wait until each is confirmed. Returns the seconds that it took."""
    from confluent_kafka import Producer

    from kbroker.cli.produce import ProduceCounts

    settings = {
        **client_settings,
        "enable.idempotence": True,
        "linger.ms": 5,
        "batch.num.messages": _BATCH_ORDERS,
    }
    producer = Producer({**settings, "log_level": 0})
    outcome, started_s, shown_s = ProduceCounts(), time.monotonic(), 0.0
    for order in orders(count):
        with signals:
            producer.produce(TOPIC, order, on_delivery=outcome)
            producer.poll(0)
        if time.monotonic() - shown_s > _TICK_S:
            shown_s = time.monotonic()
            view.produced(outcome.confirmed)
    while _flush(producer, signals):
        view.produced(outcome.confirmed)
        if time.monotonic() - started_s > _STALLED_S:
            raise CommandFailed("the broker did not confirm the orders")
    view.produced(outcome.confirmed)
    if outcome.failed:
        raise CommandFailed(f"{outcome.failed} orders were not confirmed: {outcome.first_error}")
    return time.monotonic() - started_s


def _flush(producer: Producer, signals: Deferred) -> int:
    """Flush for a tick; returns how many orders are left."""
    with signals:
        return producer.flush(_TICK_S)


def lag_on_disk(data_dir: Path) -> int:
    """Orders that the group has not finished, read from disk while the broker runs."""
    from kbroker.cli.storage import open_data_dir

    with open_data_dir(data_dir) as found:
        lags = [each.lag for each in found.inspect().share_partitions if each.group == GROUP]
    return sum(lag for lag in lags if lag is not None)


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """The figures at the end, in lines of at most 80 columns."""

    tally: Tally
    produce_s: float
    work_s: float
    broker_bytes: int
    lag: int

    def lines(self) -> Iterator[str]:
        rows = list(self._rows())
        width = max(len(name) for name, _ in rows)
        return (f"{name.ljust(width)}  {text}" for name, text in rows)

    def _rows(self) -> Iterator[tuple[str, str]]:
        tally = self.tally
        of_consumer, of_broker = tally.strikes
        yield "orders produced (acks=all)", f"{tally.count:,} in {self.produce_s:.1f} s"
        yield (
            "deliveries, from one partition",
            f"{tally.by_worker.total():,} in {self.work_s:.1f} s, including the kills",
        )
        yield "  by consumer", self._by_consumer()
        yield "  of these, redelivered", f"{tally.again:,}"
        yield "held when the consumer was killed", str(of_consumer)
        yield "in flight when the broker was killed", str(of_broker)
        yield "accepted", f"{tally.total['accepted']:,}"
        yield "rejected (poison)", f"{tally.total['rejected']:,}"
        yield f"given up after {tally.delivery_limit} deliveries", f"{tally.total['gave_up']:,}"
        yield "finished", f"{tally.finished:,} of {tally.count:,}, each exactly once"
        yield "lag, read from disk", f"{self.lag:,}"
        yield "memory of the broker", f"{human_bytes(self.broker_bytes)} anonymous"

    def _by_consumer(self) -> str:
        counts = [self.tally.by_worker[number] for number in sorted(self.tally.by_worker)]
        if len(counts) <= _EACH_SHOWN:
            return " ".join(f"{each:,}" for each in counts)
        return f"{len(counts)} consumers, {min(counts):,} to {max(counts):,} each"


def next_steps() -> str:
    """Commands that work in the same shell: they use the path of this command if `kbroker` is not
    on the PATH."""
    called = Path(sys.argv[0])
    if called.name != "kbroker":
        command = f"{_short(Path(sys.executable))} -m kbroker"
    else:
        found = shutil.which("kbroker")
        command = "kbroker" if found is not None and Path(found).samefile(called) else _short(called)
    return _STEPS.format(kbroker=command)


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
