"""Counters of the hot path: plain integers and preallocated bucket lists that the parts of the
broker hold and add to.

Counting costs one attribute or list item and an addition; a histogram adds a bisection in a short
tuple. No record costs a look-up by label. Nothing is locked, since everything runs on the loop.
Counters do not know how they are exported: kbroker/metrics_export/ reads them and the parts'
`statistics()` for each request of /metrics.

Counters start at zero with the broker, or when their topic or group is created.
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
"""Indexed by the protocol's id of the acknowledge type."""


class Histogram:
    """`counts[i]`: the observations of at most `bounds[i]` and above the bound before it. The last
    count is of those above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class RequestMetrics:
    """Counters of one Kafka API.

    - `by_version[v]`: requests of version v, including malformed ones
    - `seconds`: from the frame to the answer that is ready to send
    - `errors`: by error code, one for each row of an answer
    """

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
        histogram.counts[bisect_left(SECONDS, seconds)] += 1  # Histogram.observe, inlined.
        histogram.total += seconds

    def failed(self, codes: Sequence[int]) -> None:
        for code in set(codes):  # Few codes, but perhaps of very many rows.
            self.errors[code] = self.errors.get(code, 0) + codes.count(code)


class WaitMetrics:
    """Requests that wait for data (Kafka's purgatory): how many there are now, and how many timed
    out without data."""

    __slots__ = ("expired", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.expired = 0


class SaslMetrics:
    """Log-ins by mechanism. `expired`: connections that were closed at the end of their session."""

    __slots__ = ("expired", "failures", "renewals", "successes")

    def __init__(self) -> None:
        self.successes: dict[str, int] = {}
        self.renewals: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.expired = 0

    def offer(self, mechanisms: Iterable[str]) -> None:
        """Count from 0: a series that begins with 1 shows no increase."""
        for counts in (self.successes, self.renewals, self.failures):
            for mechanism in mechanisms:
                counts.setdefault(mechanism, 0)

    def authenticated(self, mechanism: str, *, is_renewal: bool) -> None:
        counts = self.renewals if is_renewal else self.successes
        counts[mechanism] = counts.get(mechanism, 0) + 1

    def failed(self, mechanism: str) -> None:
        self.failures[mechanism] = self.failures.get(mechanism, 0) + 1


class QuotaMetrics:
    """Requests whose clients had to wait, and for how long, by the key of the quota. `muted`:
    connections that wait now. `refused`: connections that came too fast from their address."""

    __slots__ = ("muted", "refused", "requests", "wait_ms")

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.wait_ms: dict[str, int] = {}
        self.muted = 0
        self.refused = 0

    def throttled(self, key: str, wait_ms: int) -> None:
        self.requests[key] = self.requests.get(key, 0) + 1
        self.wait_ms[key] = self.wait_ms.get(key, 0) + wait_ms


class BrokerMetrics:
    """Counters of the whole broker. `requests`: by api key, filled in when the server starts."""

    __slots__ = (
        "accepted",
        "connections",
        "fetch",
        "quotas",
        "received_bytes",
        "refused",
        "requests",
        "sasl",
        "sent_bytes",
        "share_fetch",
    )

    def __init__(self) -> None:
        self.sasl = SaslMetrics()
        self.quotas = QuotaMetrics()
        self.requests: dict[int, RequestMetrics] = {}
        self.connections = 0
        self.accepted = 0
        self.refused = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.fetch = WaitMetrics()
        self.share_fetch = WaitMetrics()


class TopicMetrics:
    """Counters of one topic. As in Kafka, a Produce or Fetch is counted once for each partition of
    the topic that it names, a share request once."""

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
"""Counters in the statistics of a share-partition, which are lost when it is unloaded."""

_read_counters = attrgetter(*ENGINE_COUNTERS)
_NOTHING = (0,) * len(ENGINE_COUNTERS)


ODDITIES = ("malformed", "too_far")
"""Errors in the headers of a scheduled record (formats/schedule_headers.py)."""


class ShareGroupMetrics:
    """One share group, from its first share-partition in memory or first lost record, until it is
    deleted.

    - `acknowledged`: records by acknowledge type, including gaps
    - `removed_records`: records that retention or DeleteRecords removed before the group had
      finished them
    - `odd_schedules`: records with an impossible schedule in their headers, by kind of error
    - `unloaded`: the counts of share-partitions that have been unloaded, in the order of
      ENGINE_COUNTERS
    """

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
        """Count a saved list of acknowledgements in the client's form: first and last offset, and
        one type for all offsets or one for each."""
        acknowledged = self.acknowledged
        for first, last, types in batches:
            if len(types) == 1:
                acknowledged[types[0]] += last - first + 1
            else:
                codes = bytes(types)
                for each in range(len(acknowledged)):
                    acknowledged[each] += codes.count(each)

    def keep(self, partition: tuple[UUID, int], statistics: object) -> None:
        """Keep the counts of a share-partition that is unloaded."""
        self.unloaded[partition] = self.counters(partition, statistics)

    def forget(self, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Drop the counts of deleted share-partitions."""
        for partition in partitions:
            self.unloaded.pop(partition, None)

    def counters(self, partition: tuple[UUID, int], statistics: object = None) -> tuple[int, ...]:
        """The share-partition's counts, added up over all its times in memory. `statistics`: those
        of the present time, if it is loaded."""
        before = self.unloaded.get(partition, _NOTHING)
        return before if statistics is None else tuple(map(add, before, _read_counters(statistics)))
