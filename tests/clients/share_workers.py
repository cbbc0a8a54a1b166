"""The test's side of share_worker.py: start workers, send them commands, wait for their events."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.testing.broker import RunningBroker

PATIENCE_S = 90.0
REPOSITORY = Path(__file__).parents[2]


class Delivery(NamedTuple):
    topic: str
    partition: int
    offset: int
    count: int
    value: str | None
    asked_at: float
    at: float

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset


class Acknowledged(NamedTuple):
    """The response to an acknowledgement of one record; code 0: success."""

    place: tuple[str, int, int]
    code: int
    at: float


class ShareWorker:
    """One process. `deliveries`, `acknowledged` and `errors` grow while it runs."""

    def __init__(self, crew: Crew, bootstrap: str, group: str, *, mode: str, max_poll_records: int) -> None:
        self._crew = crew
        self.deliveries: list[Delivery] = []
        self.acknowledged: list[Acknowledged] = []
        self.errors: list[dict[str, Any]] = []
        self.moments: dict[str, float] = {}
        self._log: list[str] = []
        command = [
            sys.executable,
            "-m",
            "tests.clients.share_worker",
            bootstrap,
            group,
            mode,
            str(max_poll_records),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        self._threads = [threading.Thread(target=read) for read in (self._read_events, self._read_log)]
        for thread in self._threads:
            thread.start()

    def tell(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()

    @property
    def values(self) -> list[str | None]:
        return [delivery.value for delivery in self.deliveries]

    @property
    def accepted_places(self) -> set[tuple[str, int, int]]:
        return {each.place for each in self.acknowledged if each.code == 0}

    @property
    def accepted_values(self) -> set[str | None]:
        places = self.accepted_places
        return {delivery.value for delivery in self.deliveries if delivery.place in places}

    @property
    def seconds_to_first_record(self) -> float:
        return self.deliveries[0].at - self.moments["subscribing"]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Leave cleanly; returns when the process has ended with exit code 0."""
        self.tell("close")
        self._crew.until("closed", lambda: "closed" in self.moments)
        assert self._process.wait(PATIENCE_S) == 0, self.log

    @property
    def log(self) -> str:
        return "".join(self._log)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def dispose(self) -> None:
        self.kill()
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue  # a command that the killed process did not read

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._crew.changed:
                self._take(json.loads(line))
                self._crew.changed.notify_all()
        with self._crew.changed:
            self._crew.changed.notify_all()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        self._log.extend(self._process.stderr)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "record":
            self.deliveries.append(Delivery(**event))
        elif kind == "acknowledged":
            places = [(event["topic"], event["partition"], offset) for offset in event["offsets"]]
            self.acknowledged += [Acknowledged(place, event["code"], event["at"]) for place in places]
        elif kind == "error":
            self.errors.append(event)
        else:
            self.moments[kind] = event["at"]


class Crew:
    """The workers of one test on one broker."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.changed = threading.Condition()
        self.workers: list[ShareWorker] = []

    def start(
        self, count: int, group: str, *, mode: str = "explicit", max_poll_records: int = 500
    ) -> list[ShareWorker]:
        """Start `count` processes that are ready to subscribe."""
        new = [
            ShareWorker(self, self.broker.bootstrap, group, mode=mode, max_poll_records=max_poll_records)
            for _ in range(count)
        ]
        self.workers += new
        self.until("ready", lambda: all("ready" in worker.moments for worker in new))
        return new

    def start_one(self, group: str, *, mode: str = "explicit", max_poll_records: int = 500) -> ShareWorker:
        return self.start(1, group, mode=mode, max_poll_records=max_poll_records)[0]

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Evaluate the condition after every event, and at intervals; fails after the deadline."""
        deadline = time.monotonic() + PATIENCE_S
        with self.changed:
            while time.monotonic() < deadline:
                if condition():
                    return
                self.changed.wait(0.1)
        state = [
            f"worker {number}: {len(worker.deliveries)} deliveries, {len(worker.acknowledged)} "
            f"acknowledged, errors {worker.errors[-3:]}, "
            f"ended: {worker.has_ended}, log: {worker.log[-1500:]}"
            for number, worker in enumerate(self.workers)
        ]
        raise AssertionError("\n".join([f"not within {PATIENCE_S:.0f} s: {what}", *state]))

    def until_delivered(self, values: Iterable[str]) -> None:
        """Wait until every one of `values` has been delivered to some worker."""
        wanted = set(values)
        self.until(
            f"{len(wanted)} values are delivered",
            lambda: wanted <= {value for worker in self.workers for value in worker.values},
        )

    def until_delivered_to(self, worker: ShareWorker, values: Iterable[str]) -> None:
        wanted = set(values)
        self.until(f"{len(wanted)} values are delivered to one worker", lambda: wanted <= set(worker.values))

    def deliveries(self) -> list[Delivery]:
        with self.changed:
            return sorted(
                (each for worker in self.workers for each in worker.deliveries), key=lambda each: each.at
            )

    def counts(self) -> dict[str | None, list[int]]:
        """Delivery counts by value, in the order of delivery."""
        counts: dict[str | None, list[int]] = {}
        for delivery in self.deliveries():
            counts.setdefault(delivery.value, []).append(delivery.count)
        return counts

    def check_each_once(self, values: Iterable[str]) -> None:
        """Every one of `values` was delivered once, with count 1, and no other value was."""
        counts = self.counts()
        often = Counter({value: len(each) for value, each in counts.items()})
        assert often == Counter(values)
        assert {count for each in counts.values() for count in each} == {1}

    def check_what_was_done_stays_done(self, since: float) -> None:
        """Records confirmed before the moment `since` were not delivered after it."""
        done = {
            each.place
            for worker in self.workers
            for each in worker.acknowledged
            if each.code == 0 and each.at < since
        }
        again = [delivery for delivery in self.deliveries() if delivery.at > since and delivery.place in done]
        assert not again, (
            f"{len(again)} of {len(done)} records were delivered after they were done: {again[:5]}"
        )


@contextmanager
def open_crew(broker: RunningBroker) -> Iterator[Crew]:
    crew = Crew(broker)
    try:
        yield crew
    finally:
        for worker in crew.workers:
            worker.dispose()
