"""Rows of workers that hold one job at a time. The jobs are sent one per batch, or thousands per
batch with different codecs.

Each reading uses a new queue: a queue's group holds the log, and a second group on the same topic
would not be a work queue.
"""

from __future__ import annotations

from perf.queues.own import OURS, queue
from perf.suite.rows import Dry, Row, RowFunction, Run
from perf.workloads.fill import fill
from perf.workloads.share import share_consume

CODECS = ("none", "lz4", "zstd")
CONSUMERS = (1, 8)
RECORD_BYTES = 100
_JOBS_PER_S = {1: 6_000, 8: 12_000}
"""By the number of workers: enough jobs are sent for this rate. A window in which they nearly run
out is closed early."""
_FILL_S = 2.0
_HOW = (
    "A queue as `kbroker queues create` makes it, prefetch 1; explicit acknowledgements, sent "
    "with the next poll."
)


def jobs_for(run: Run, consumers: int) -> int:
    """Enough jobs for a window of the run."""
    return int(_JOBS_PER_S[consumers] * (run.seconds + run.warm_up_s))


def _measured(consumers: int, batch_records: int | None, codec: str) -> RowFunction:
    def measured(run: Run) -> dict[str, float]:
        jobs = jobs_for(run, consumers)
        with queue(run.candidate) as name:
            fill(run.bootstrap, name, jobs, RECORD_BYTES, batch_records=batch_records, compression=codec)
            outcome = share_consume(
                run.plan(),
                run.bootstrap,
                name,
                name,
                consumers=consumers,
                mode="explicit",
                max_poll_records=1,
                most=jobs,
            )
        if outcome.ran_dry:
            raise Dry(f"{jobs} jobs were done before there was a window")
        return run.readings(outcome)

    return measured


def _row(consumers: int, kind: str) -> Row:
    people = "1 worker" if consumers == 1 else f"{consumers} workers"
    if kind == "singles":
        title, run = "batches of one", _measured(consumers, 1, "none")
    else:
        title, run = f"1 MB batches, {kind}", _measured(consumers, None, kind)
    takes_s = _FILL_S + 2.5
    return Row(
        f"one-{consumers}-{kind}", f"{people}, {title}", "jobs", run, _HOW, candidates=OURS,
        quick=kind in ("singles", "none", "lz4"), takes_s=takes_s, warms=False,
    )  # fmt: skip


ROWS = tuple(_row(consumers, kind) for consumers in CONSUMERS for kind in ("singles", *CODECS))
