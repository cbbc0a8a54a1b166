"""Rows of transactional producers: 100 records of 100 bytes a transaction, one after the other."""

from __future__ import annotations

from perf.suite.rows import Row, RowFunction, Run
from perf.transactions.clients import RECORD_BYTES, RECORDS, committer
from perf.workloads.window import measure

PARTITIONS = 4
_ROUNDS = 3


def _measured(producers: int) -> RowFunction:
    def measured(run: Run) -> dict[str, float]:
        topic = run.new_topic(partitions=PARTITIONS)
        clients = [committer(run.bootstrap, topic, number % PARTITIONS) for number in range(producers)]
        outcome = measure(run.plan(), clients).outcome()
        return {**run.readings(outcome), "commits_per_s": outcome.requests / outcome.seconds}

    return measured


def _row(producers: int, title: str) -> Row:
    note = (
        f"{RECORDS} records of {RECORD_BYTES} B to one partition for each transaction. p50 and p99: "
        "commit_transaction(), which sends them."
    )
    return Row(
        f"commit-{producers}", title, "transactions", _measured(producers), note, quick=True, rounds=_ROUNDS
    )


ROWS = (
    _row(1, "one transactional producer"),
    _row(4, "four transactional producers, a partition each"),
)
