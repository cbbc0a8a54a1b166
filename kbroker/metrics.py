"""Counters of the hot path: plain integers and preallocated bucket lists that the parts of the
broker hold and add to.

Counting is one attribute or list item and an addition; a histogram adds a bisection in a short
tuple. Nothing here is looked up by a label for a record, nothing is locked (everything runs on the
loop), nothing knows how it is exported: kbroker/metrics_export/ reads these objects and the parts'
`statistics()` when somebody asks for /metrics.

Everything counts since the start of the broker, or since the topic or group it belongs to was made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import add, attrgetter
from uuid import UUID

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PERCENT = (0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 100.0)
RECORDS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)

ACK_TYPES = ("gap", "accept", "release", "reject", "renew")
"""By the id that acknowledge types have in the protocol."""


class Histogram:
    """`counts[i]` observations were at most `bounds[i]` and above the bound before; the last of
    them above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class RequestMetrics:
    """One Kafka API. `by_version[v]` requests of version v, malformed ones included; `seconds` from
    the frame to the answer that is ready to be sent; `errors` by the error code in an answer, each
    of its rows counted."""

    __slots__ = ("by_version", "errors", "request_bytes", "response_bytes", "seconds")

    def __init__(self, versions: int) -> None:
        self.by_version = [0] * versions
        self.errors: dict[int, int] = {}
        self.request_bytes = 0
        self.response_bytes = 0
        self.seconds = Histogram(SECONDS)

    def answered(self, seconds: float, response_bytes: int) -> None:
        self.response_bytes += response_bytes
        histogram = self.seconds
        histogram.counts[bisect_left(SECONDS, seconds)] += 1  # As Histogram.observe, without a call more.
        histogram.total += seconds

    def failed(self, codes: Sequence[int]) -> None:
        for code in codes:
            self.errors[code] = self.errors.get(code, 0) + 1


class WaitMetrics:
    """Requests that wait for data (Kafka's purgatory): how many there are now, and how many waited
    to the end of their time for nothing."""

    __slots__ = ("expired", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.expired = 0


class BrokerMetrics:
    """What belongs to no part that has a better place for it. `requests` by api key: the server
    fills it in when it begins to serve."""

    __slots__ = (
        "accepted",
        "connections",
        "fetch",
        "received_bytes",
        "refused",
        "requests",
        "sent_bytes",
        "share_fetch",
    )

    def __init__(self) -> None:
        self.requests: dict[int, RequestMetrics] = {}
        self.connections = 0
        self.accepted = 0
        self.refused = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.fetch = WaitMetrics()
        self.share_fetch = WaitMetrics()


class TopicMetrics:
    """One topic. A Produce or Fetch counts once for each of the topic's partitions that it names, a
    share request once, as in Kafka."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetch_requests",
        "failed_produce_requests",
        "failed_share_acknowledge_requests",
        "failed_share_fetch_requests",
        "fetch_requests",
        "produce_requests",
        "records_in",
        "share_acknowledge_requests",
        "share_fetch_requests",
    )

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.bytes_rejected = self.records_in = 0
        self.produce_requests = self.failed_produce_requests = 0
        self.fetch_requests = self.failed_fetch_requests = 0
        self.share_fetch_requests = self.failed_share_fetch_requests = 0
        self.share_acknowledge_requests = self.failed_share_acknowledge_requests = 0

    def fetched(self, error_code: int, size_bytes: int) -> None:
        self.fetch_requests += 1
        self.bytes_out += size_bytes
        if error_code:
            self.failed_fetch_requests += 1

    def produce_failed(self, rejected_bytes: int) -> None:
        """`rejected_bytes`: the size of a batch that was refused for its size."""
        self.failed_produce_requests += 1
        self.bytes_rejected += rejected_bytes


ENGINE_COUNTERS = (
    "acquired_records",
    "redeliveries",
    "lock_timeouts",
    "prolonged_locks",
    "delayed_deliveries",
    "failed_writes",
    "rejected",
    "exhausted",
    "expired",
    "dead_lettered",
    "look_ahead_stops",
)
"""Counters in the statistics of a share-partition, which go with it when it leaves the memory."""

_read_counters = attrgetter(*ENGINE_COUNTERS)
_NOTHING = (0,) * len(ENGINE_COUNTERS)


ODDITIES = ("malformed", "too_far")
"""What may be wrong with the headers of a scheduled record (formats/schedule_headers.py)."""


class ShareGroupMetrics:
    """One share group, from its first share-partition in memory or first lost record, until it is
    deleted.

    `acknowledged`: records by acknowledge type, gaps too. `removed_records`: records that retention
    or DeleteRecords took before the group was done with them. `odd_schedules`: records whose
    headers schedule them as nobody can, by what is wrong. `unloaded`: the counts of
    share-partitions that have left the memory since, in the order of ENGINE_COUNTERS."""

    __slots__ = (
        "acknowledged", "acquired_ranges", "fetch_ratio", "load_seconds", "odd_schedules", "removed_records",
        "unloaded",
    )  # fmt: skip

    def __init__(self) -> None:
        self.acknowledged = [0] * len(ACK_TYPES)
        self.acquired_ranges = Histogram(RECORDS)
        self.fetch_ratio = Histogram(PERCENT)
        self.load_seconds = Histogram(SECONDS)
        self.removed_records = 0
        self.odd_schedules = dict.fromkeys(ODDITIES, 0)
        self.unloaded: dict[tuple[UUID, int], tuple[int, ...]] = {}

    def count_acknowledged(self, batches: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """What an acknowledgement list that was taken and saved says, as the client wrote it: first
        and last offset, and one type for all of them or one for each."""
        acknowledged = self.acknowledged
        for first, last, types in batches:
            if len(types) == 1:
                acknowledged[types[0]] += last - first + 1
            else:
                codes = bytes(types)
                for each in range(len(acknowledged)):
                    acknowledged[each] += codes.count(each)

    def keep(self, partition: tuple[UUID, int], statistics: object) -> None:
        """A share-partition leaves the memory: what it counted stays."""
        self.unloaded[partition] = self.counters(partition, statistics)

    def forget(self, partitions: Iterable[tuple[UUID, int]]) -> None:
        """They were deleted."""
        for partition in partitions:
            self.unloaded.pop(partition, None)

    def counters(self, partition: tuple[UUID, int], statistics: object = None) -> tuple[int, ...]:
        """What the share-partition has counted in all its times in memory; `statistics` are those
        of the present one."""
        before = self.unloaded.get(partition, _NOTHING)
        return before if statistics is None else tuple(map(add, before, _read_counters(statistics)))
