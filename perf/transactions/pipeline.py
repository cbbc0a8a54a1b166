"""The row of a consume-transform-produce loop: results and offsets in one transaction."""

from __future__ import annotations

from perf.suite.candidates import MAIN
from perf.suite.rows import Dry, Row, Run
from perf.transactions.clients import RECORD_BYTES, RECORDS, transformer
from perf.workloads.fill import fill
from perf.workloads.window import measure

INPUTS = 400_000
_ROUNDS = 3
_TAKES_S = 4.5


def _inputs(run: Run) -> str:
    return run.kept_topic("inputs", lambda bootstrap, topic: fill(bootstrap, topic, INPUTS, RECORD_BYTES))


def _prepare(run: Run) -> None:
    _inputs(run)


def _measured(run: Run) -> dict[str, float]:
    results = run.new_topic()
    client = transformer(run.bootstrap, _inputs(run), results, f"of-{results}")
    window = measure(run.plan(), [client], most=INPUTS)
    outcome = window.outcome()
    if outcome.ran_dry:
        raise Dry(f"{INPUTS} records were read before there was a window")
    return {**run.readings(outcome), "commits_per_s": outcome.requests / outcome.seconds}


ROWS = (
    Row(
        "transform", "consume, transform, produce", "transactions", _measured,
        f"One process, up to {RECORDS} records a transaction with their offsets. p50 and p99: from "
        "begin_transaction() to the end of commit_transaction().",
        candidates=MAIN, quick=True, rounds=_ROUNDS, takes_s=_TAKES_S, prepare=_prepare,
    ),
)  # fmt: skip
