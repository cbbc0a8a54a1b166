"""A streaming query in a separate process that is killed with its JVM, repeatedly, while a producer
keeps sending.

    python -m spark.tests.streaming_kills DATA_DIR TOPIC HOME [--to-the-end]

Files and checkpoint of the query are below HOME.

A kill happens after a random number of new files of the query, of any kind, and then at a random
moment. It may hit between an offset and its files, between files and their commit, while a batch of
the previous life is repeated, or anywhere else.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from spark.tests.filling import PATIENCE_S, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PARTITIONS = 3
OFFSETS_PER_BATCH = 2000
TOPIC_CONFIG = {"retention.ms": "-1"}
"""The timestamps of `numbered` are long past."""
_BURST = 100
_PAUSE_S = 0.1
_FILES_PER_LIFE = 14
"""About two batches: an offset, three files of rows, their list and a commit each."""
_FILE_S = 0.3
"""A kill happens at most this long after a file."""


def start(spark: SparkSession, data_dir: Path, topic: str, home: Path, *, to_the_end: bool) -> StreamingQuery:
    """The query, the same in every life: all of a topic from its beginning, into files."""
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": True,
        "maxOffsetsPerTrigger": OFFSETS_PER_BATCH,
    }
    sink = (
        spark.readStream.format("kbroker")
        .options(**options)
        .load(str(data_dir))
        .writeStream.format("parquet")
    )
    sink = sink.option("checkpointLocation", str(home / "checkpoint"))
    return sink.trigger(**({"availableNow": True} if to_the_end else {"processingTime": "0 seconds"})).start(
        str(home / "files")
    )


@contextmanager
def producing(bootstrap: str, topic: str) -> Iterator[None]:
    """Records of all partitions in bursts, all confirmed at the end of the block."""
    stopped = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for burst in count():
                produce(bootstrap, topic, numbered(_BURST, partitions=PARTITIONS, first=burst * _BURST))
                if stopped.wait(_PAUSE_S):
                    return
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, name="producer")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
    assert not failures, failures[0]


class Life:
    """One life of the query's process."""

    def __init__(self, data_dir: Path, topic: str, home: Path) -> None:
        self._checkpoint, self._files = home / "checkpoint", home / "files"
        self._errors = home / "errors.log"
        command = [sys.executable, "-m", "spark.tests.streaming_kills", str(data_dir), topic, str(home)]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )

    def kill_at(self, moment: random.Random) -> bool:
        """SIGKILL to driver, JVM and workers at a random moment of this life; returns whether a
        batch was begun and not committed."""
        wanted = self._written() + moment.randrange(1, _FILES_PER_LIFE + 1)
        deadline = time.monotonic() + PATIENCE_S
        try:
            while self._written() < wanted:
                assert self._process.poll() is None, f"the query ended by itself: {self._said()}"
                assert time.monotonic() < deadline, f"nothing is written: {self._said()}"
                time.sleep(0.005)
            time.sleep(moment.uniform(0, _FILE_S))
        finally:
            self.kill()
        return self._last("offsets") > self._last("commits")

    def kill(self) -> None:
        """Spark puts its Python workers into a process group of their own, in the same session."""
        while pids := _session(self._process.pid):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.01)
        self._process.wait()

    def _written(self) -> int:
        """Number of files so far."""
        return sum(
            1
            for folder in (self._checkpoint / "offsets", self._checkpoint / "commits", self._files)
            for _ in folder.glob("[!.]*")
        )

    def _last(self, folder: str) -> int:
        """The number of the last batch in a folder of the checkpoint."""
        return max((int(path.name) for path in (self._checkpoint / folder).glob("[0-9]*")), default=-1)

    def _said(self) -> str:
        return self._errors.read_text(errors="replace")[-4000:]


def _session(leader: int) -> list[int]:
    """Processes of a session that have not ended, the leader first."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(path.name))
    return sorted(found, key=lambda pid: (pid != leader, pid))


def main() -> None:
    from kbroker_spark.session import session

    data_dir, topic, home, *more = sys.argv[1:]
    quick = {
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    spark = session("kills", **{"spark.master": "local[2]", **quick})
    start(spark, Path(data_dir), topic, Path(home), to_the_end="--to-the-end" in more).awaitTermination()


if __name__ == "__main__":
    main()
