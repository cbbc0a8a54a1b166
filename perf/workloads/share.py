"""Share consumers: they acquire records and acknowledge them, repeatedly."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate, cycle
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from perf.workloads.client_process import Link, WorkloadFailed
from perf.workloads.outcome import WorkloadOutcome
from perf.workloads.settings import NO_SETTINGS, Settings, base
from perf.workloads.window import Client, Plan, measure

if TYPE_CHECKING:
    from confluent_kafka import AcknowledgeType, Message

Mode: TypeAlias = Literal["implicit", "explicit"]

_POLL_S = 0.1
_PATTERN = 10_000


class Mix(NamedTuple):
    """Fractions of the records that are released and rejected; the others are accepted."""

    release: float = 0.01
    reject: float = 0.001


def share_consume(
    plan: Plan,
    bootstrap: str,
    topic: str,
    group: str | Sequence[str],
    *,
    consumers: int = 1,
    mode: Mode = "implicit",
    verdicts: Mix | None = None,
    max_poll_records: int = 500,
    sync: bool = False,
    think_s: float = 0.0,
    most: int | None = None,
    all_of_it: bool = False,
    settings: Settings = NO_SETTINGS,
) -> WorkloadOutcome:
    """Share consumers, a process for each. With several groups, the consumers join them in turn.

    - `mode`: with "implicit", a poll accepts the records of the poll before; with "explicit", each
      record is acknowledged by a call.
    - `verdicts` (explicit only): which records are not accepted.
    - `sync`: call commit_sync() after each poll, and measure it in `latencies_ms`. Otherwise
      acknowledgements are sent with the next poll.
    - `think_s`: simulated work for each record.
    - `most`: records available to all groups together; the window ends before they are used up.
    - `all_of_it`: for small topics. The window lasts from the moment when each consumer has had its
      first records (which are not counted) until all of the `most` records are finished.

    `records` counts finished records: accepted or rejected. A released one is counted once it is
    finished. `details["released"]` is the number of releases. `details["fairness"]` is the smallest
    number of records of a consumer, divided by the largest. `requests` counts polls that returned
    records (with `think_s`: records). `first_record_ms` is measured from subscribe(). The client
    library returns whole batches, whatever `max_poll_records` is. Raises WorkloadFailed.
    """
    if verdicts is not None and mode != "explicit":
        raise ValueError("verdicts need explicit acknowledgement")
    own = {
        **base(bootstrap, settings),
        "max.poll.records": max_poll_records,
        "share.acknowledgement.mode": mode,
    }
    groups = [group] if isinstance(group, str) else group
    arguments = {
        "topic": topic, "explicit": mode == "explicit", "verdicts": verdicts, "sync": sync,
        "think_s": think_s,
    }  # fmt: skip
    clients = [
        Client(_consume, {**arguments, "settings": {**own, "group.id": groups[number % len(groups)]}})
        for number in range(consumers)
    ]
    window = measure(plan, clients, most=most, all_of_it=all_of_it)
    released = window.sum([report.others for report in window.reports])
    each = [window.sum([report.units]) for report in window.reports]
    return window.outcome(fairness=min(each) / max(1, *each), **({"released": released} if verdicts else {}))


class _Verdicts:
    """The acknowledgement types of successive records. The pattern is fixed, so it is not random
    which records are released."""

    def __init__(self, mix: Mix) -> None:
        from confluent_kafka import AcknowledgeType

        pattern = [_verdict(mix, number, AcknowledgeType) for number in range(_PATTERN)]
        self.types = cycle(pattern)
        self._releases = list(accumulate((each == AcknowledgeType.RELEASE for each in pattern), initial=0))
        self._at = 0

    def releases_among(self, records: int) -> int:
        """The number of releases among this many next records."""
        before, self._at = self._at, self._at + records
        return self._releases_before(self._at) - self._releases_before(before)

    def _releases_before(self, number: int) -> int:
        rounds, rest = divmod(number, _PATTERN)
        return rounds * self._releases[-1] + self._releases[rest]


def _verdict(mix: Mix, number: int, types: type[AcknowledgeType]) -> AcknowledgeType:
    unusual = mix.release + mix.reject
    if (which := _of_the_first(number, unusual)) == _of_the_first(number + 1, unusual):
        return types.ACCEPT
    is_reject = _of_the_first(which + 1, mix.reject / unusual) > _of_the_first(which, mix.reject / unusual)
    return types.REJECT if is_reject else types.RELEASE


def _of_the_first(number: int, share: float) -> int:
    """This share of `number` records, rounded down."""
    return int(share * number + 1e-9)


class _Worker:
    """The loop of one consumer."""

    def __init__(self, link: Link, arguments: Mapping[str, Any]) -> None:
        from confluent_kafka import Message, ShareConsumer

        self._link, self._topic = link, arguments["topic"]
        self._explicit, self._sync, self._think_s = (
            arguments["explicit"],
            arguments["sync"],
            arguments["think_s"],
        )
        self._verdicts = None if arguments["verdicts"] is None else _Verdicts(arguments["verdicts"])
        self._consumer: ShareConsumer = ShareConsumer(arguments["settings"])
        self._error_of = Message.error

    def run(self) -> None:
        link = self._link
        link.begin()
        self._consumer.subscribe([self._topic])
        while not (messages := self._poll()):
            link.check_patience()
        link.note_first()
        self._acknowledge(messages)
        self._commit()  # Hold no records while other consumers still wait for their first ones.
        link.first()
        while link.running:
            if messages := self._poll():
                self._work(messages)
        link.send_report()
        self._consumer.close()

    def _poll(self) -> Sequence[Message]:
        messages = list(self._consumer.poll(_POLL_S))
        if any(map(self._error_of, messages)):
            raise WorkloadFailed(
                next(error.str() for message in messages if (error := message.error()) is not None)
            )
        return messages

    def _work(self, messages: Sequence[Message]) -> None:
        if self._think_s:
            self._think_about(messages)
        else:
            self._acknowledge(messages)
        if self._sync:
            began_s = time.monotonic()
            self._commit()
            ended_s = time.monotonic()
            self._link.latency(ended_s, (ended_s - began_s) * 1000)

    def _acknowledge(self, messages: Sequence[Message]) -> None:
        records, releases = len(messages), 0
        if self._verdicts is not None:
            deque(map(self._consumer.acknowledge, messages, self._verdicts.types), maxlen=0)
            releases = self._verdicts.releases_among(records)
        elif self._explicit:
            deque(map(self._consumer.acknowledge, messages), maxlen=0)
        self._link.count(records - releases, sum(map(len, messages)), others=releases)

    def _think_about(self, messages: Sequence[Message]) -> None:
        """Work on one record after the other; close() releases those that are left at the end of
        the run."""
        for number in range(len(messages)):
            if not self._link.running:
                return
            time.sleep(self._think_s)
            self._acknowledge(messages[number : number + 1])

    def _commit(self) -> None:
        for partition, error in self._consumer.commit_sync().items():
            if error is not None:
                raise WorkloadFailed(f"acknowledgement of {partition.topic}-{partition.partition}: {error}")


def _consume(link: Link, arguments: Mapping[str, Any]) -> None:
    _Worker(link, arguments).run()
