"""A real broker for tests: `open_test_broker()` runs one in a temporary directory and insists that
it ends well."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from kbroker.client.broker_process import BrokerStartFailed, RunningBroker, free_port
from kbroker.testing.broker_logs import LOGS

__all__ = ["FAST_CONFIG", "BrokerStartFailed", "RunningBroker", "free_port", "open_test_broker"]

FAST_CONFIG: Mapping[str, str] = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "100",
}
"""Bounds low enough for tests that wait for a lock or a session to expire; the defaults themselves
stay Kafka's."""

Option: TypeAlias = Any
"""A keyword argument of RunningBroker."""


@contextmanager
def open_test_broker(**options: Option) -> Iterator[RunningBroker]:
    """Start a broker in a temporary directory; takes the keyword arguments of RunningBroker,
    without `home`; `config` goes on top of FAST_CONFIG.

    On leaving the block a running broker is stopped with SIGTERM and must end with exit code 0;
    where the block raised, it is killed, and the error gets a note with the end of its log. A
    fixture's block never raises for a failing test: there the pytest plugin adds the log to the
    test's report. A given `data_dir` is left in place.
    """
    with tempfile.TemporaryDirectory(prefix="kbroker-test-") as home:
        config = {**FAST_CONFIG, **(options.pop("config", None) or {})}
        broker = RunningBroker(Path(home), config=config, **options)
        broker.start()
        LOGS.opened(broker.bootstrap, broker.log_file)
        ended_well = False
        try:
            yield broker
            if broker.is_running:
                broker.stop()
            ended_well = True
        except BaseException as error:
            broker.kill()
            tail = broker.log_tail()
            if tail not in str(error):
                error.add_note(f"the broker's log ends:\n{tail}")
            raise
        finally:
            LOGS.closed(broker.log_file, keep=ended_well)
