"""Looks up single records by offset in the logs: the head of a queue, the worst records, the
originals of dead letters.

Neighbouring records are read together. Records that no longer exist are left out. Records that
cannot be decoded are left out too, with a warning in the log; the job `verify` reports all damage.
This module must not know Spark, so that it can run both in Spark's workers and in the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Generator, Iterable, Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from kbroker.storage.spi import LogId
from kbroker_spark.data import READ_BYTES, read_range, reading
from kbroker_spark.decode import CorruptBatch, decode
from kbroker_spark.errors import DataLoss, SourceError

logger = logging.getLogger(__name__)

_NEIGHBOURS: Final = 256
"""Offsets at most this far apart are read together, since they are often in the same batch."""
_FEW_BYTES: Final = 1 << 16
"""For a single record: usually one batch."""
_COLUMNS: Final = ("offset", "timestamp", "key", "value")


class Place(NamedTuple):
    """The position of a record. The topic's id distinguishes a recreated topic from the old one."""

    topic_id: str
    partition: int
    offset: int


class Found(NamedTuple):
    """A record. `timestamp_ms` is None if it has none."""

    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None


def look_up(data_dir: str | Path, places: Iterable[Place]) -> dict[Place, Found]:
    """The records that still exist. Raises SourceError if the directory cannot be read at all."""
    found: dict[Place, Found] = {}
    ordered = sorted(set(places))
    if not ordered:
        return found
    with reading(data_dir):
        for (topic_id, partition), group in groupby(ordered, lambda place: place[:2]):
            for run in _runs(place.offset for place in group):
                found.update(_read(data_dir, topic_id, partition, run[0], run[-1] + 1, set(run)))
    return found


def first_from(data_dir: str | Path, places: Iterable[Place]) -> dict[Place, tuple[int, Found]]:
    """The first record at or after each place, with its offset. Logs have holes, and control
    records are skipped."""
    found: dict[Place, tuple[int, Found]] = {}
    with reading(data_dir) as directory:
        for place in sorted(set(places)):
            try:
                end = directory.logs().bounds(LogId(UUID(place.topic_id), place.partition)).end_offset
            except KeyError:
                continue
            with closing(_read(data_dir, *place, end)) as records:
                for there, record in records:
                    found[place] = there.offset, record
                    break
    return found


def _runs(offsets: Iterable[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > _NEIGHBOURS:
            yield run
            run = []
        run.append(offset)
    if run:
        yield run


def _read(
    data_dir: str | Path,
    topic_id: str,
    partition: int,
    first: int,
    end: int,
    wanted: Container[int] | None = None,
) -> Generator[tuple[Place, Found]]:
    """`wanted`: the offsets to return, or None for all."""
    while first < end:
        try:
            yield from _read_from(data_dir, topic_id, partition, first, end, wanted)
            return
        except DataLoss as loss:
            if loss.resume is None or loss.resume <= first:
                return
            first = loss.resume
        except (CorruptBatch, SourceError) as error:
            logger.warning(
                "records %d to %d of topic id %s, partition %d cannot be looked up: %s",
                first,
                end - 1,
                topic_id,
                partition,
                error,
            )
            return


def _read_from(
    data_dir: str | Path, topic_id: str, partition: int, first: int, end: int, wanted: Container[int] | None
) -> Iterator[tuple[Place, Found]]:
    with reading(data_dir) as directory:
        max_bytes = _FEW_BYTES if wanted is None else READ_BYTES
        for views in read_range(directory.logs(), UUID(topic_id), partition, first, end, max_bytes):
            for piece in decode(views, first=first, end=end, columns=_COLUMNS):
                columns = piece.columns
                for row, offset in enumerate(columns["offset"].to_pylist()):
                    if wanted is None or offset in wanted:
                        micros = columns["timestamp"][row].value
                        timestamp_ms = None if micros is None or micros < 0 else micros // 1000
                        record = Found(
                            timestamp_ms, columns["key"][row].as_py(), columns["value"][row].as_py()
                        )
                        yield Place(topic_id, partition, offset), record
