"""The jobs killed with kill -9 at random moments, repeatedly: after one more run the tables equal
those of a run without kills."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.testing.broker import open_test_broker
from spark.tests.filling import KEPT, Row, consume, numbered, produce
from spark.tests.test_pipeline_jobs import archived

pytestmark = pytest.mark.full
KILLS, PARTITIONS, RECORDS = 8, 3, 60_000


def command(data_dir: Path, out: Path) -> subprocess.Popen[bytes]:
    """In a separate session, so that the JVM is killed with it."""
    arguments = [sys.executable, "-m", "kbroker_pipeline", "archive", str(data_dir), "--out", str(out)]
    arguments += ["--batch-records", "3000", "--master", "local[2]"]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(arguments, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)


def test_archive_is_killed_again_and_again(tmp_path: Path) -> None:
    chance, out = random.Random(932), tmp_path / "out"
    with open_test_broker(config=KEPT) as broker:
        broker.create_topic("numbers", partitions=PARTITIONS)
        produce(broker.bootstrap, "numbers", numbered(RECORDS, partitions=PARTITIONS), batch_num_messages=200)
        expected: list[Row] = consume(broker.bootstrap, "numbers", partitions=PARTITIONS)
        outcomes = []
        for _ in range(KILLS):
            process = command(broker.data_dir, out)
            try:
                process.wait(chance.uniform(8, 25))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            outcomes.append(process.wait())
        assert command(broker.data_dir, out).wait() == 0
        assert -signal.SIGKILL in outcomes
        assert archived(out) == expected
