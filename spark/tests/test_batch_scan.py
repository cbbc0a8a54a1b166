"""kbroker-batches: every stored batch, and damage as rows; on the files of each engine."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.formats.batches import CONTROL, ProducerInfo, build_batch
from kbroker.formats.compression import Codec
from kbroker.storage.spi import LogId, LogReader, LogSettings, SegmentInfo
from kbroker_spark import batches_table
from kbroker_spark.batch_scan import FoundBatch, LogRange, scan, split
from kbroker_spark.data import reading
from kbroker_spark.errors import SourceError
from kbroker_spark.tables import prepared
from spark.tests.stored import batch, records, writing
from tests.brokers import DURABLE_ENGINES

ROLLS = LogSettings(segment_bytes=1 << 12)


def rows(
    path: Path, *, most_bytes: int = 1 << 20, check_crc: bool = True, **options: str
) -> list[dict[str, Any]]:
    """Of all ranges, as the tasks read them."""
    with reading(path) as data:
        names = frozenset(options["topics"].split(",")) if "topics" in options else None
        ranges = batches_table.log_ranges(data.logs(), data.state(), names, most_bytes)
        tasks = batches_table.gathered(ranges, most_bytes)
        assert [each for task in tasks for each in task] == ranges
        found = [row for task in tasks for row in batches_table.rows(data.logs(), task, check_crc=check_crc)]
    return [dict(zip(batches_table.SCHEMA.names, row, strict=True)) for row in found]


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
@pytest.mark.parametrize("most_bytes", [100, 1500, 1 << 20])
def test_each_batch_is_one_row(engine: str, most_bytes: int, tmp_path: Path) -> None:
    """However the logs are divided: segments, parts of segments with batches across their edges,
    holes, logs without records."""
    with writing(tmp_path, engine) as data:
        topic = data.topic("t", partitions=3, settings=ROLLS)
        offset, expected = 0, []
        for number in range(60):
            count = number % 9 + 1
            data.append(topic, 0, batch(records(count), offset))
            expected.append((0, offset, offset + count - 1, count))
            offset += count + number % 3
        data.append(topic, 2, batch(records(500), 0))
        found = rows(tmp_path, most_bytes=most_bytes)
    places = [
        (row["partition"], row["base_offset"], row["last_offset"], row["record_count"]) for row in found
    ]
    assert sorted(places) == [*expected, (2, 0, 499, 500)]
    assert {(row["crc_ok"], row["problem"]) for row in found} == {(True, None)}


def test_what_a_row_says(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic = data.topic("t")
        producer = ProducerInfo(7, 2, 40)
        data.append(
            topic,
            0,
            build_batch(records(3), base_offset=5, leader_epoch=9, codec=Codec.ZSTD, producer=producer),
        )
        data.append(topic, 0, batch([*records(1, first_ms=-1)], 8, attributes=CONTROL | 8 | 16))
        gone = data.topic("gone")
        data.append(gone, 0, batch(records(1), 0))
        data.tombstone(gone, "gone")
        found = {row["base_offset"]: row for row in rows(tmp_path)}
        (unchecked,) = rows(tmp_path, topics="t", check_crc=False)[:1]
        assert rows(tmp_path, topics="gone") == []
    first, second, orphan = found[5], found[8], found[0]
    assert (first["topic"], first["topic_id"], first["codec"], first["leader_epoch"]) == (
        "t",
        str(topic),
        "zstd",
        9,
    )
    assert (first["producer_id"], first["producer_epoch"], first["base_sequence"]) == (7, 2, 40)
    assert (first["first_timestamp"], first["max_timestamp"], first["timestamp_type"]) == (
        1_000_000,
        1_002_000,
        0,
    )
    assert (
        first["is_control"],
        first["is_transactional"],
        second["is_control"],
        second["is_transactional"],
    ) == (False, False, True, True)
    assert (second["timestamp_type"], second["first_timestamp"], second["producer_id"]) == (1, None, None)
    assert (orphan["topic"], orphan["topic_id"]) == (None, str(gone))
    assert (unchecked["crc_ok"], unchecked["problem"]) == (None, None)


# --- damage, in a log with an index of its batches and in one without ---


class OneLog:
    """A LogReader of one log. `places`: where batches begin, by the engine's index; without it, it
    walks from the beginning."""

    may_block = False

    def __init__(self, data: bytes, end: int, places: list[tuple[int, int, int]] | None) -> None:
        self.data, self.end, self.places = data, end, places

    def bounds(self, log: LogId) -> tuple[int, int]:
        return 0, self.end

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> list[memoryview]:
        if self.places is None:
            return [memoryview(self.data)] if offset < self.end else []
        wanted = [place for place in self.places if place[1] >= offset and place[0] < end_offset]
        return [memoryview(self.data)[wanted[0][2] : wanted[-1][2] + SIZE]] if wanted else []


BATCHES = [batch(records(4), 4 * number) for number in range(50)]
SIZE = len(BATCHES[0])
WHOLE = b"".join(BATCHES)
PLACES = [(4 * number, 4 * number + 3, SIZE * number) for number in range(50)]


def found_in(data: bytes, *, knows_places: bool = True, first: int = 0, end: int = 200) -> list[FoundBatch]:
    logs: LogReader = OneLog(data, 200, PLACES if knows_places else None)  # type: ignore[assignment]
    wanted = LogRange("t", LOG.topic_id, 0, first, end, len(data), first == 0, end == 200)
    return list(scan(logs, wanted, check_crc=True))


LOG = LogId(UUID(int=1), 0)
GOOD = [(4 * number, 4 * number + 3) for number in range(50)]


def test_a_wrong_crc_is_one_row_and_reading_goes_on() -> None:
    data = bytearray(WHOLE)
    data[SIZE * 7 + 70] ^= 1
    found = found_in(bytes(data))
    assert [(each.first_offset, each.last_offset) for each in found] == GOOD
    assert [(each.first_offset, each.problem) for each in found if each.problem] == [
        (28, "its CRC does not match")
    ]


@pytest.mark.parametrize("field", [range(0, 8), range(8, 12), [16], range(17, 21), range(23, 27)], ids=str)
def test_damaged_headers_hide_no_good_batch(field: Any) -> None:
    """Whatever a header's fields contain, all other batches have their rows, and the offsets of
    this one a row with a problem."""
    for at in field:
        data = bytearray(WHOLE)
        data[SIZE * 7 + at] ^= 0x55
        found = found_in(bytes(data))
        good = [(each.first_offset, each.last_offset) for each in found if not each.problem]
        assert [place for place in GOOD if place not in good] in ([(28, 31)], []), f"byte {at}"
        assert any(each.problem for each in found), f"byte {at}"


def test_where_nobody_knows_how_it_goes_on() -> None:
    data = bytearray(WHOLE)
    data[SIZE * 7 + 8] ^= 0x55
    found = found_in(bytes(data), knows_places=False)
    assert [(each.first_offset, each.last_offset) for each in found] == [*GOOD[:7], (28, 199)]
    assert found[-1].problem == "what is stored here is not a record batch, or a damaged one"
    assert found[-1].header is None


def test_an_end_that_cannot_be_read_is_a_problem() -> None:
    (last,) = [each for each in found_in(WHOLE[: -SIZE - 10]) if each.problem]
    assert (last.first_offset, last.last_offset) == (192, 199)


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_ends(seed: int) -> None:
    """Noise anywhere: reading ends, rows are in order, and undamaged batches far enough from damage
    are there."""
    chosen = random.Random(seed)
    data, touched = bytearray(WHOLE), set()
    for _ in range(chosen.randrange(1, 5)):
        at, size = chosen.randrange(len(data)), chosen.choice((1, 8, 300))
        data[at : at + size] = chosen.randbytes(len(data[at : at + size]))
        touched |= set(range(at // SIZE, min(at + size - 1, len(data) - 1) // SIZE + 1))
    for edge in (200, 90):
        found = [*found_in(bytes(data), end=edge), *(found_in(bytes(data), first=edge) if edge < 200 else ())]
        good = {
            (each.first_offset, each.last_offset)
            for each in found
            if each.header and each.crc_ok and not each.problem
        }
        covered = {
            offset
            for each in found
            if each.problem
            for offset in range(max(0, each.first_offset), min(200, each.last_offset + 1))
        }
        for number, (first, last) in enumerate(GOOD):
            assert (first, last) in good or covered >= set(range(first, last + 1)), f"batch {number}"
            assert number in touched or (first, last) in good or first in covered


def test_ranges_of_segments() -> None:
    segments = [
        SegmentInfo(0, 10, 100, 0),
        SegmentInfo(10, 20, 100, 0),
        SegmentInfo(20, 1020, 1000, 0),
        SegmentInfo(1020, 1020, 0, -1),
    ]
    found = split("t", LOG, segments, 250)
    assert [(each.first, each.end, each.is_first, each.is_last) for each in found] == [
        (0, 20, True, False),
        (20, 270, False, False),
        (270, 520, False, False),
        (520, 770, False, False),
        (770, 1020, False, True),
    ]
    assert [(each.first, each.end) for each in split("t", LOG, [SegmentInfo(0, 2, 999, 0)], 1)] == [
        (0, 1),
        (1, 2),
    ]


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_options_that_make_no_sense(text: str) -> None:
    with pytest.raises(SourceError, match="'bytesPerPartition'"):
        batches_table.reader({"path": "/nowhere", "bytesperpartition": text}, batches_table.SCHEMA)


def test_a_table_has_no_isolation_level() -> None:
    options = {"path": "/nowhere", "kafka.isolation.level": "read_uncommitted"}
    assert prepared(options, batches_table.OPTIONS) == options
    with pytest.raises(SourceError, match="only the format kbroker has it"):
        prepared({**options, "kafka.isolation.level": "read_committed"}, batches_table.OPTIONS)


def test_damaged_and_truncated_files_of_the_segment_engine(tmp_path: Path) -> None:
    """Sealed segments: their indexes know where the batches were. The lost part of a truncated file
    is a hole."""
    with writing(tmp_path) as data:
        topic = data.topic("t", settings=ROLLS)
        for number in range(200):
            data.append(topic, 0, batch(records(2), 2 * number))
    sealed = sorted((tmp_path / "log-segment" / f"{topic}-0").glob("0*/data.ninja"))
    assert len(sealed) > 3
    with sealed[0].open("r+b") as file:
        file.seek(3 * len(batch(records(2), 0)) + 8)  # the length field of the fourth
        file.write(b"\x7f")
    with sealed[1].open("r+b") as file:
        file.truncate(sealed[1].stat().st_size - 5)
    lost = int(sealed[2].parent.name) - 2
    found = rows(tmp_path)
    assert [(row["base_offset"], row["last_offset"]) for row in found if row["problem"]] == [(6, 7)]
    assert [row["base_offset"] for row in found] == [offset for offset in range(0, 400, 2) if offset != lost]
