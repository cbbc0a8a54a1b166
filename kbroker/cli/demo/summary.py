"""The summary of the demo: the figures, and commands to continue with. All lines fit into 80
columns."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kbroker.cli.demo.tally import Tally
from kbroker.cli.output import human_bytes

_EACH_SHOWN = 6
_STEPS = """
To continue with a broker that keeps running (all pages: {kbroker} docs):
  {kbroker} start --data-dir data &    # wait until it says it is ready
  {kbroker} topics create orders
  seq 5 | {kbroker} produce orders
  {kbroker} share-consume orders --group workers    # end it with Ctrl-C
  {kbroker} share-groups describe workers"""


@dataclass(frozen=True, slots=True)
class Summary:
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
