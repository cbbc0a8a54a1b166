"""The data of queue-health: rows of its tables, and a few numbers calculated from them. Must not
know the layout of a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class ShareRow(NamedTuple):
    """One share-partition in one snapshot: a row of the table `queue_health`, whose columns
    `docs/pipeline.md` explains."""

    group: str
    topic: str
    partition: int
    taken_ms: int
    log_start: int | None
    log_end: int | None
    start_offset: int
    state_epoch: int
    produced: int
    finished: int
    acknowledged: int
    archived: int
    dead_lettered: int
    given_up: int
    backlog: int | None
    waiting_again: int
    archiving: int
    finished_ahead: int
    delivered: int
    redelivered: int
    deliveries: int
    max_deliveries: int
    oldest_offset: int | None
    oldest_ms: int | None
    head_state: str
    head_deliveries: int

    @property
    def place(self) -> str:
        return f"{self.group} · {self.topic}-{self.partition}"


class Point(NamedTuple):
    """The sums of one group and topic in one snapshot. `oldest_ms`: the timestamp of the oldest
    unfinished record."""

    taken_ms: int
    group: str
    topic: str
    produced: int
    finished: int
    acknowledged: int
    archived: int
    dead_lettered: int
    backlog: int
    oldest_ms: int | None

    @property
    def place(self) -> str:
        return f"{self.group} · {self.topic}"


class Stuck(NamedTuple):
    """A share-partition whose start offset did not move despite backlog.

    - `since_ms`: the time of the first snapshot with this start offset.
    - `ahead_moves`: records after the head were finished meanwhile, so consumers are active and the
      head blocks the queue.
    """

    row: ShareRow
    since_ms: int
    ahead_moves: bool


class CountRow(NamedTuple):
    """The number of records of a group with this delivery count, finished or not."""

    group: str
    delivery_count: int
    records: int


class WorstRow(NamedTuple):
    """A record with a high delivery count; key and value are excerpts."""

    group: str
    topic: str
    partition: int
    offset: int
    state: str
    delivery_count: int
    timestamp_ms: int | None
    key: str | None
    value: str | None


class Health(NamedTuple):
    """The data of the page. `now_ms`: the time of the run, to which ages refer. `changed`: the run
    wrote a snapshot."""

    data_dir: str
    engine: str
    now_ms: int
    changed: bool
    runs: int
    shares: Sequence[ShareRow]
    points: Sequence[Point]
    stuck: Sequence[Stuck]
    counts: Sequence[CountRow]
    worst: Sequence[WorstRow]
    problems: Sequence[str]


def with_counts(
    shares: Sequence[Mapping[str, Any]], last: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of a snapshot, with `archived` at least as high as the states count (`given_up`).

    A state of an earlier version has counted only a part of its life. What it gave up before is in
    the rows of the last snapshot (`last`), which have no count if an earlier version wrote them."""
    before = {key_of(row): row for row in last}
    found = []
    for row in shares:
        least, count, old = 0, row["given_up"], before.get(key_of(row))
        if old is not None and old["state_epoch"] == row["state_epoch"]:
            known = old.get("given_up")
            since = 0 if known is None else count - known
            least = old["archived"] + since if since >= 0 else 0  # Otherwise the state is another one.
        archived = min(max(row["archived"], count, least), row["finished"])
        found.append({**row, "archived": archived, "acknowledged": row["finished"] - archived})
    return found


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The share-partition."""
    return row["group"], row["topic_id"], row["partition"]


def oldest_age_s(health: Health) -> float | None:
    moments = [row.oldest_ms for row in health.shares if row.oldest_ms is not None]
    return max(0.0, (health.now_ms - min(moments)) / 1000) if moments else None


def rate_per_s(health: Health, of: Callable[[Point], int]) -> float | None:
    """The rate per second between the last two snapshots; None if there are fewer."""
    sums: dict[int, int] = defaultdict(int)
    for point in health.points:
        sums[point.taken_ms] += of(point)
    moments = sorted(sums)[-2:]
    if len(moments) < 2:
        return None
    return max(0, sums[moments[1]] - sums[moments[0]]) * 1000 / (moments[1] - moments[0])
