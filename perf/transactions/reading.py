"""Rows of consumers of transactions: read_committed beside read_uncommitted on the same log, in
alternating windows of one reading."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from perf.suite.candidates import READING
from perf.suite.rows import Row, RowFunction, Run
from perf.transactions.clients import RECORDS, fill_with_transactions
from perf.workloads.fetch import fetch

TRANSACTIONS, QUICK_TRANSACTIONS = 4_000, 800
ABORT_EVERY = 10
_COMMITTED, _UNCOMMITTED = "read_committed", "read_uncommitted"
_TURNS = (_UNCOMMITTED, _COMMITTED, _COMMITTED, _UNCOMMITTED)
_ROUNDS = 3
_TAKES_S = 6.0


class _Sum(NamedTuple):
    """Sums over the windows of one level."""

    records: float = 0
    seconds: float = 0.0
    cpu_s: float = 0.0

    def plus(self, records: float, seconds: float, cpu_s: float) -> _Sum:
        return _Sum(self.records + records, self.seconds + seconds, self.cpu_s + cpu_s)

    @property
    def rate(self) -> float:
        return self.records / self.seconds


def _topic(run: Run, abort_every: int) -> str:
    transactions = QUICK_TRANSACTIONS if run.quick else TRANSACTIONS
    fill = partial(fill_with_transactions, transactions=transactions, abort_every=abort_every)
    return run.kept_topic(f"transactions-{abort_every}", lambda bootstrap, topic: fill(bootstrap, topic))


def _measured(abort_every: int) -> RowFunction:
    def measured(run: Run) -> dict[str, float]:
        topic = _topic(run, abort_every)
        sums = dict.fromkeys((_UNCOMMITTED, _COMMITTED), _Sum())
        for level in _TURNS:
            plan = run.plan(run.seconds / 2)
            outcome = fetch(plan, run.bootstrap, topic, settings={"isolation.level": level})
            sums[level] = sums[level].plus(outcome.records, outcome.seconds, run.watch.cost().cpu_s)
        committed, uncommitted = sums[_COMMITTED], sums[_UNCOMMITTED]
        # The consumer reads the log over and over, and gets this part of it.
        shown = 1 - 1 / abort_every if abort_every else 1.0
        cost = run.watch.cost()
        return {
            "rate": committed.rate / shown, "uncommitted_rate": uncommitted.rate,
            "per_cpu_s": committed.records / shown / max(committed.cpu_s, 1e-9),
            "rss_anon_mb": cost.rss_anon_mb,
        }  # fmt: skip

    return measured


def _row(key: str, title: str, abort_every: int) -> Row:
    note = (
        f"{TRANSACTIONS} transactions of {RECORDS} records from eight producers. A rate is that of the log's "
        "records that the consumer passes, those of aborted transactions included. Four windows in turn."
    )
    return Row(
        key, title, "transactions", _measured(abort_every), note, candidates=READING, quick=True,
        rounds=_ROUNDS, takes_s=_TAKES_S, prepare=lambda run: _prepare(run, abort_every),
    )  # fmt: skip


def _prepare(run: Run, abort_every: int) -> None:
    _topic(run, abort_every)


ROWS = (
    _row("read-committed", "read_committed, all committed", 0),
    _row("read-committed-aborted", "read_committed, every tenth transaction aborted", ABORT_EVERY),
)
