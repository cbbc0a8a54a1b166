"""A real broker for tests: `open_test_broker()` runs one in a temporary directory, and checks that
it stops with exit code 0."""

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
"""Lower bounds for tests that wait for a lock or a session to expire. The defaults stay Kafka's."""

Option: TypeAlias = Any
"""A keyword argument of RunningBroker."""


@contextmanager
def open_test_broker(**options: Option) -> Iterator[RunningBroker]:
    """Start a broker in a temporary directory. Takes the keyword arguments of RunningBroker except
    `home`; `config` is added to FAST_CONFIG, and overrides it.

    When the block ends, a running broker is stopped with SIGTERM and must exit with code 0. If the
    block raises, the broker is killed, and the error gets a note with the end of its log. In a
    fixture the block does not raise when the test fails; there the pytest plugin adds the log to
    the test's report. A given `data_dir` is not deleted.
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
