"""Rows of queues that keep the order of each key's jobs, compared with the same jobs in a queue
without order.

They exist if the broker has the setting.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from kbroker.settings.group_configs import GROUP_CONFIGS
from perf.queues.jobs import fill_with_keys
from perf.queues.one_at_a_time import RECORD_BYTES, jobs_for
from perf.queues.own import OURS, queue
from perf.suite.rows import Dry, Row, RowFunction, Run
from perf.workloads.share import share_consume

ORDERING = "kbroker.queue.ordering"
KNOWN = ORDERING in GROUP_CONFIGS
WORKERS, KEYS = 8, 1_000
UNORDERED = "unordered-8"
_HOT_SHARE = 0.5
_SEED = 20


def keys(jobs: int, hot_share: float) -> list[bytes]:
    """The keys of this many jobs: one of KEYS keys each, at random, with one key for `hot_share` of
    them. The same at each call."""
    source = random.Random(_SEED)
    return [b"0" if source.random() < hot_share else b"%d" % source.randrange(KEYS) for _ in range(jobs)]


def _measured(group_config: Mapping[str, str], hot_share: float) -> RowFunction:
    def measured(run: Run) -> dict[str, float]:
        jobs = jobs_for(run, WORKERS)
        with queue(run.candidate, group_config=group_config) as name:
            fill_with_keys(run.bootstrap, name, keys(jobs, hot_share), RECORD_BYTES)
            outcome = share_consume(
                run.plan(),
                run.bootstrap,
                name,
                name,
                consumers=WORKERS,
                mode="explicit",
                max_poll_records=1,
                most=jobs,
            )
        if outcome.ran_dry:
            raise Dry(f"{jobs} jobs were done before there was a window")
        return run.readings(outcome)

    return measured


def _row(key: str, title: str, group_config: Mapping[str, str], hot_share: float, note: str) -> Row:
    text = f"{WORKERS} workers, prefetch 1, 1 MB batches. {note}"
    run = _measured(group_config, hot_share)
    return Row(key, title, "jobs", run, text, candidates=OURS, quick=True, rounds=2, takes_s=3.5, warms=False)


_BY_KEY = {ORDERING: "key"}
ROWS = (
    (
        _row(UNORDERED, "8 workers, keys, no order", {}, 0.0, "1 000 keys."),
        _row("ordered-8", "8 workers, in the order of 1 000 keys", _BY_KEY, 0.0, "1 000 keys."),
        _row(
            "ordered-hot-8", "the same, one key is half of the jobs", _BY_KEY, _HOT_SHARE,
            "Jobs of the one key are done one at a time, so that seven workers share the other half.",
        ),
    )
    if KNOWN
    else ()
)  # fmt: skip
ORDERED = tuple(row.key for row in ROWS if row.key != UNORDERED)
