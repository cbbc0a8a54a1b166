"""Single records by their offsets, straight from the log: the head of a queue, the worst records,
the originals of dead letters.

Neighbours are read together. What is not there any more is not found, nor is what cannot be
decoded, with a warning in the log: the job `verify` tells of all damage.
This module must not know Spark, so that it can run in its workers as well as in the driver.
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
"""Offsets this far apart are read in one go: they often lie in one batch."""
_FEW_BYTES: Final = 1 << 16
"""For one record: mostly that is one batch."""
_COLUMNS: Final = ("offset", "timestamp", "key", "value")


class Place(NamedTuple):
    """Where a record lies. The topic's id: a topic that was deleted and made again is another
    one."""

    topic_id: str
    partition: int
    offset: int


class Found(NamedTuple):
    """`timestamp_ms` is None where the record has none."""

    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None


def look_up(data_dir: str | Path, places: Iterable[Place]) -> dict[Place, Found]:
    """The records that are still there. Raises SourceError where the directory cannot be read at
    all."""
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
    """The first record at or behind each place, with its offset: logs have holes, and control
    records, which are nobody's."""
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
    """`wanted` None: all that there are."""
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
