"""Rows of redelivered jobs: at a steady load, and 100 000 jobs spread over compressed batches."""

from __future__ import annotations

import time
from dataclasses import replace

from perf.measuring.processes import memory
from perf.queues.jobs import JobReport, jobs_sent, lateness_ms, sender, worker
from perf.queues.one_at_a_time import RECORD_BYTES
from perf.queues.own import OURS, queue, standing
from perf.suite.rows import Row, RowFunction, Run
from perf.workloads.client_process import WorkloadFailed
from perf.workloads.fill import fill
from perf.workloads.outcome import Percentiles
from perf.workloads.share import share_consume
from perf.workloads.window import Window, measure

WORKERS = 8
OFFERED_PER_S = 1_000
_SECONDS, _QUICK_SECONDS = 5.0, 3.0
_SETTLED_S = 1.0
_EQUAL_WAITS = {"multiplier": "1.0", "jitter": "0.0"}

JOBS, QUICK_JOBS, BATCH_JOBS = 100_000, 20_000, 10
_PREFETCH = "500"
_RETRY_DELAY_S, _QUICK_RETRY_DELAY_S = 20, 8
_LONGEST_S = 120.0
_FEW = 1_000


def _steady(delay_s: float, prefetch: str = "1") -> RowFunction:
    def measured(run: Run) -> dict[str, float]:
        settings = {"prefetch": prefetch, "delay": str(int(delay_s * 1000)), **_EQUAL_WAITS}
        with queue(run.candidate, settings) as name:
            plan = run.plan(_QUICK_SECONDS if run.quick else _SECONDS, warm_up_s=delay_s + _SETTLED_S)
            workers = [worker(run.bootstrap, name) for _ in range(WORKERS)]
            window = measure(plan, [sender(run.bootstrap, name, OFFERED_PER_S, RECORD_BYTES), *workers])
        sent = jobs_sent((report for report in window.reports if not isinstance(report, JobReport)), window)
        outcome = replace(window.outcome(), latencies_ms=Percentiles.of(lateness_ms(window, delay_s)))
        return {**run.readings(outcome), "of_ideal": outcome.records / max(1, sent)}

    return measured


def _retries(run: Run) -> dict[str, float]:
    """Uses a separate broker, whose memory holds nothing else."""
    jobs, delay_s = (QUICK_JOBS, _QUICK_RETRY_DELAY_S) if run.quick else (JOBS, _RETRY_DELAY_S)
    settings = {"prefetch": _PREFETCH, "delay": str(delay_s * 1000), **_EQUAL_WAITS}
    with run.own_broker() as broker:
        broker.start()
        run.watch.pid = broker.pid
        with queue(broker, settings) as name, broker.connect() as connection:
            _fill(broker.bootstrap, name, _FEW)
            share_consume(
                run.plan(_LONGEST_S), broker.bootstrap, name, name, mode="explicit", most=_FEW, all_of_it=True
            )
            empty_mb = memory(broker.pid).anonymous_mb
            _fill(broker.bootstrap, name, jobs)
            workers = [
                worker(broker.bootstrap, name, counted="released", waits_for_others=True)
                for _ in range(WORKERS)
            ]
            released = measure(run.plan(_LONGEST_S), workers, most=jobs, all_of_it=True)
            ended_s = time.monotonic()
            left = jobs - _early(released)
            if (now := standing(connection, name)).unfinished != left:
                raise WorkloadFailed(f"{now.unfinished} jobs are unfinished, not {left}")
            parked_mb = memory(broker.pid).anonymous_mb
            run.say(f"{run.candidate.key}: {jobs} jobs released within {released.span.seconds:.1f} s")
            time.sleep(max(0.0, ended_s + delay_s - time.monotonic()))
            outcome = share_consume(
                run.plan(_LONGEST_S), broker.bootstrap, name, name, consumers=WORKERS, mode="explicit",
                most=left, all_of_it=True,
            )  # fmt: skip
        readings = run.readings(outcome)
        return {
            **readings, "idle_mb": empty_mb,
            "over_empty_mb": max(parked_mb, readings["rss_anon_mb"]) - empty_mb,
            "released_per_s": jobs / released.span.seconds,
        }  # fmt: skip


def _early(released: Window) -> int:
    """The number of jobs that were redelivered and finished while others were still released for
    the first time, which happens on a slow machine."""
    return sum(len(report.back) for report in released.reports if isinstance(report, JobReport))


def _fill(bootstrap: str, name: str, jobs: int) -> None:
    fill(bootstrap, name, jobs, RECORD_BYTES, batch_records=BATCH_JOBS, compression="lz4")


_LATE = (
    f"{WORKERS} workers, prefetch 1, 1 000 jobs/s sent one by one; each job is released once and done "
    "when it is redelivered. "
    "p50 and p99: how long after its delay. Ideal: as many done as sent."
)
_RETRIES = (
    f"{WORKERS} workers, prefetch {_PREFETCH}; all were released once, are parked on disk, and are due. "
    "Memory: the higher of that while they are parked and that at the end. "
    f"On a separate broker. --quick: {QUICK_JOBS // 1000} 000 jobs."
)
ROWS = (
    Row(
        "redelivery-1s", "1 000 jobs/s, each twice, delay 1 s", "waiting", _steady(1.0),
        _LATE, candidates=OURS, quick=True, takes_s=_SECONDS + 2 + _SETTLED_S, warms=False,
    ),
    Row(
        "redelivery-1s-20", "the same, prefetch 20", "waiting", _steady(1.0, "20"),
        f"{_LATE} Here with prefetch 20: a response may have several jobs.", candidates=OURS, quick=True,
        takes_s=_SECONDS + 2 + _SETTLED_S, warms=False,
    ),
    Row(
        "redelivery-3s", "1 000 jobs/s, each twice, delay 3 s", "waiting", _steady(3.0),
        f"{_LATE} Jobs that wait longer than a second are parked on disk.", candidates=OURS, quick=True,
        takes_s=_SECONDS + 4 + _SETTLED_S, warms=False,
    ),
    Row(
        "retries-100000", "100 000 jobs redelivered from 10 000 lz4 batches", "waiting", _retries,
        _RETRIES, candidates=OURS, quick=True, rounds=2, takes_s=_RETRY_DELAY_S + 15, warms=False,
    ),
)  # fmt: skip
