"""What the requests of clients use, and the times that clients must wait for it.

    Meter      of all clients: their quotas and their rates
    Metering   of one request: its handler and the server note what it uses

A client waits after the answer: the answer names the time, and the server reads nothing from the
connection meanwhile. A client above its quota fetches nothing. Below it, it gets no more than there
is room for, and at least one batch; what it got counts. Kafka reads records first, and sends an
empty answer if they were too many. A worker's records would then be held by a member that did not
get them (docs/decisions/0021-quotas-and-locks.md).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.security.quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Owner,
    QuotaTable,
)
from kbroker.security.rates import Rate, Rates, Windows, throttle_ms

_MOST_BYTES: Final = (1 << 31) - 1
_PERCENT: Final = 100.0


class _Use(NamedTuple):
    rate: Rate
    limit: float


class Meter:
    """All rates of clients, over the quotas of `table`, which may change at any time."""

    def __init__(self, table: QuotaTable, windows: Windows) -> None:
        self._table = table
        self._rates: Rates[tuple[str, Owner]] = Rates(windows)

    def __len__(self) -> int:
        return len(self._rates)

    @property
    def windows(self) -> Windows:
        return self._rates.windows

    def of(self, key: str, user: str, client_id: str, now_ms: float) -> _Use | None:
        quota = self._table.of_client(key, user, client_id)
        if quota is None:
            return None
        return _Use(self._rates.of((key, quota.owner), now_ms), quota.limit)


class Metering:
    """One request of a client. The times to wait are noted by key, and the longest holds.

    `busy_s`: how long the broker has worked for it; the server adds to it."""

    __slots__ = ("_client_id", "_meter", "_user", "busy_s", "waits_ms")

    def __init__(self, meter: Meter, user: str, client_id: str) -> None:
        self._meter = meter
        self._user = user
        self._client_id = client_id
        self.busy_s = 0.0
        self.waits_ms: dict[str, int] = {}

    def _use(self, key: str, now_ms: float) -> _Use | None:
        return self._meter.of(key, self._user, self._client_id, now_ms)

    def _record(self, key: str, value: float, now_ms: float) -> int:
        """The time to wait after this use, in milliseconds."""
        if (use := self._use(key, now_ms)) is None:
            return 0
        use.rate.record(value, now_ms)
        return throttle_ms(use.rate, use.limit, now_ms)

    def produced(self, size_bytes: int, now_ms: float) -> None:
        self._note(PRODUCER_BYTE_RATE, self._record(PRODUCER_BYTE_RATE, size_bytes, now_ms))

    def worked(self, now_ms: float) -> None:
        """Count the time that the broker has worked, and have the client wait for it: never longer
        than one window, as in Kafka."""
        wait_ms = self._record(REQUEST_PERCENTAGE, self.busy_s * _PERCENT, now_ms)
        self._note(REQUEST_PERCENTAGE, min(wait_ms, self._meter.windows.window_ms))
        self.busy_s = 0.0

    def worked_after(self, now_ms: float) -> None:
        """Count the work for an answer that is already sent: the next request waits for it."""
        self._record(REQUEST_PERCENTAGE, self.busy_s * _PERCENT, now_ms)
        self.busy_s = 0.0

    # -- Fetch and ShareFetch

    def room_bytes(self, now_ms: float) -> int:
        """How many bytes of records may be fetched now. 0: none, and the client waits."""
        if (use := self._use(CONSUMER_BYTE_RATE, now_ms)) is None:
            return _MOST_BYTES
        if wait_ms := throttle_ms(use.rate, use.limit, now_ms):
            self._note(CONSUMER_BYTE_RATE, wait_ms)
            return 0
        room = use.limit * use.rate.over_ms(now_ms) / 1000 - use.rate.total(now_ms)
        return min(_MOST_BYTES, max(1, int(room)))

    def fetched(self, size_bytes: int, now_ms: float) -> None:
        """Count records. If they were more than there was room for, the next request waits."""
        self._record(CONSUMER_BYTE_RATE, size_bytes, now_ms)

    # -- the wait

    def _note(self, key: str, wait_ms: int) -> None:
        if wait_ms:
            self.waits_ms[key] = wait_ms

    @property
    def produced_wait_ms(self) -> int:
        """The time to wait for produced bytes, which locks do not shorten: every shorter wait would
        let another request with records through."""
        return self.waits_ms.get(PRODUCER_BYTE_RATE, 0)

    @property
    def longest_wait(self) -> tuple[str, int]:
        """The key of the quota that the client waits for, and the time in milliseconds; 0 if it
        does not wait."""
        if not self.waits_ms:
            return "", 0
        return max(self.waits_ms.items(), key=lambda each: each[1])
