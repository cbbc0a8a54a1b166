"""Plans and rows of batch queries, made as Spark's workers make them but without Spark: ranges,
losses, damage, every engine and codec."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from kbroker.formats.batches import CONTROL, Record, stamp_log_append_time
from kbroker.formats.compression import Codec
from kbroker.storage.spi import LogId
from kbroker_spark.batch_reader import BatchReader, RangePartition, finder
from kbroker_spark.data import DataDir, reading
from kbroker_spark.errors import DataLoss, SourceError
from kbroker_spark.lookup import look
from kbroker_spark.offsets import Range, TopicPartition
from kbroker_spark.options import Subscribe
from kbroker_spark.schema import arrow_schema, full_schema
from spark.tests.stored import Stored, batch, records, writing
from tests.brokers import DURABLE_ENGINES

OFFSETS = StructType([StructField("offset", LongType())])


def reader(path: Path, schema: StructType | None = None, **options: str) -> BatchReader:
    chosen = {} if {"subscribePattern", "assign"} & options.keys() else {"subscribe": "t"}
    return BatchReader({"path": str(path), **chosen, **options}, schema or full_schema(include_headers=True))


def ranges(found: BatchReader) -> list[tuple[int, int, int]]:
    """(partition, first, end)"""
    planned = [partition.range for partition in found.partitions() if isinstance(partition, RangePartition)]
    return [(each.partition, each.first, each.end) for each in planned]


def table(found: BatchReader) -> pa.Table:
    """Through pickling, as Spark sends partitions to workers."""
    partitions = pickle.loads(pickle.dumps(list(found.partitions())))
    batches = [each for partition in partitions for each in found.read(partition)]
    return pa.Table.from_batches(
        batches, schema=batches[0].schema if batches else arrow_schema(full_schema(include_headers=True))
    )


def offsets(path: Path, **options: str) -> list[int]:
    found: list[int] = table(reader(path, OFFSETS, **options))["offset"].to_pylist()
    return found


def filled(data: Stored, *, partitions: int = 1, codecs: Iterable[Codec] = (Codec.NONE,)) -> UUID:
    """100 records in batches of ten, each batch with the next codec."""
    codecs = list(codecs)
    topic_id = data.topic("t", partitions=partitions)
    for partition in range(partitions):
        content = (
            batch(records(10, first_ms=1000 + 10 * number), 10 * number, codec=codecs[number % len(codecs)])
            for number in range(10)
        )
        data.append(topic_id, partition, *content)
    return topic_id


@pytest.mark.parametrize("decoder", ["numpy", "auto"])
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_every_column_of_every_record(tmp_path: Path, engine: str, decoder: str) -> None:
    headers = (("a", b"1"), ("b", None), ("a", b""))
    content = [
        Record(0, 5, b"key", b"value", headers),
        Record(0, 3, None, None),
        Record(0, 4, b"", b"", (("", b"x"),)),
    ]
    stamped = bytearray(batch(records(1), 20))
    stamp_log_append_time(stamped, 77)
    with writing(tmp_path, engine) as data:
        topic_id = data.topic("t", partitions=2)
        data.append(
            topic_id,
            1,
            batch(content, 10, codec=Codec.ZSTD),
            batch(records(2), 15, attributes=CONTROL),
            bytes(stamped),
        )
    found = table(reader(tmp_path, decoder=decoder))
    assert found.schema.equals(arrow_schema(full_schema(include_headers=True)))
    ms = [each // 1000 for each in found["timestamp"].cast(pa.int64()).to_pylist()]
    names = ("key", "value", "topic", "partition", "offset", "timestampType", "headers")
    assert list(zip(*(found[name].to_pylist() for name in names), ms, strict=True)) == [
        (b"key", b"value", "t", 1, 10, 0, [{"key": name, "value": value} for name, value in headers], 5),
        (None, None, "t", 1, 11, 0, None, 3),
        (b"", b"", "t", 1, 12, 0, [{"key": "", "value": b"x"}], 4),
        (b"k0", b"v0", "t", 1, 20, 1, None, 77),
    ]


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_any_range_in_all_codecs(tmp_path: Path, engine: str) -> None:
    with writing(tmp_path, engine) as data:
        filled(data, codecs=Codec)
    for first, end in ((0, 100), (3, 98), (10, 20), (19, 21), (55, 56), (40, 40), (60, 50)):
        found = offsets(
            tmp_path, startingOffsets=f'{{"t":{{"0":{first}}}}}', endingOffsets=f'{{"t":{{"0":{end}}}}}'
        )
        assert found == list(range(first, end))


def test_a_schema_of_ones_own(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        filled(data)
    wanted = StructType([StructField("Partition", IntegerType()), StructField("VALUE", BinaryType())])
    found = table(reader(tmp_path, wanted))
    assert found.schema.equals(arrow_schema(wanted))
    assert found["VALUE"].to_pylist() == [b"v%d" % (offset % 10) for offset in range(100)]
    assert table(reader(tmp_path, StructType([wanted[0]])))["Partition"].to_pylist() == [0] * 100
    with pytest.raises(SourceError, match="There is no column id"):
        reader(tmp_path, StructType([StructField("id", LongType())]))


def test_a_schema_may_say_not_null_of_what_is_never_null(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        data.append(data.topic("t"), 0, batch([Record(0, 5, None, b"v")], 0))
    wanted = StructType([StructField(name, BinaryType(), nullable=False) for name in ("value", "key")])
    assert table(reader(tmp_path, StructType(wanted.fields[:1])))["value"].to_pylist() == [b"v"]
    with pytest.raises(
        SourceError, match="Column key is NOT NULL in the schema, but it is null in some rows"
    ):
        table(reader(tmp_path, wanted))


def test_times_and_offsets_choose_the_range(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        filled(data, partitions=2)
    by_time = '{"t":{"0":1005,"1":1099}}'
    assert ranges(reader(tmp_path)) == [(0, 0, 100), (1, 0, 100)]
    assert ranges(reader(tmp_path, assign='{"t":[1]}')) == [(1, 0, 100)]
    assert ranges(reader(tmp_path, subscribePattern="[st]")) == [(0, 0, 100), (1, 0, 100)]
    assert ranges(reader(tmp_path, startingTimestamp="1007", endingTimestamp="1050")) == [
        (0, 7, 50),
        (1, 7, 50),
    ]
    assert ranges(reader(tmp_path, startingOffsetsByTimestamp=by_time)) == [(0, 5, 100), (1, 99, 100)]
    assert ranges(reader(tmp_path, endingOffsetsByTimestamp=by_time)) == [(0, 0, 5), (1, 0, 99)]
    assert ranges(reader(tmp_path, endingTimestamp="99999")) == [(0, 0, 100), (1, 0, 100)]
    assert ranges(
        reader(tmp_path, startingOffsets='{"t":{"0":-2,"1":50}}', endingOffsets='{"t":{"0":10,"1":-1}}')
    ) == [
        (0, 0, 10),
        (1, 50, 100),
    ]
    assert (
        ranges(reader(tmp_path, startingTimestamp="99999", startingOffsetsByTimestampStrategy="latest")) == []
    )
    with pytest.raises(
        SourceError, match="No offset matched from request of topic-partition t-0 and timestamp 99999"
    ):
        reader(tmp_path, startingTimestamp="99999").partitions()
    with pytest.raises(
        SourceError, match="If startingOffsets contains specific values, you must specify all TopicPartitions"
    ):
        reader(tmp_path, startingOffsets='{"t":{"0":0}}').partitions()


def test_sizes_of_spark_partitions(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        filled(data, partitions=2)
    assert len(reader(tmp_path, minPartitions="5").partitions()) in (4, 5, 6)
    assert max(end - first for _, first, end in ranges(reader(tmp_path, maxRecordsPerPartition="30"))) <= 30
    for options in ({"minPartitions": "7"}, {"maxRecordsPerPartition": "9"}):
        assert sorted(offsets(tmp_path, **options)) == sorted([*range(100), *range(100)])


def test_without_records_there_is_no_partition_and_spark_asks_for_one(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        data.topic("t", partitions=2)
    found = reader(tmp_path)
    assert found.partitions() == []
    assert list(found.read(InputPartition(None))) == []


def test_options_without_effect_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with writing(tmp_path) as data:
        filled(data)
    with caplog.at_level(logging.WARNING):
        reader(tmp_path, maxOffsetsPerTrigger="5").partitions()
    assert caplog.messages == ["option maxOffsetsPerTrigger has no effect in batch queries"]


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_records_below_the_log_start_are_not_there(
    tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    with writing(tmp_path, engine) as data:
        data.log_start(filled(data), 0, 37)
    assert offsets(tmp_path) == list(range(37, 100))
    assert offsets(tmp_path, startingTimestamp="1000")[0] == 37
    given = {"startingOffsets": '{"t":{"0":20}}', "endingOffsets": '{"t":{"0":50}}'}
    with pytest.raises(
        DataLoss,
        match=r"^Some data may have been lost: offsets 20 to 36 of t-0 are gone, its log begins at 37 "
        r"\(.*failOnDataLoss",
    ):
        offsets(tmp_path, **given)
    with caplog.at_level(logging.WARNING):
        assert offsets(tmp_path, failOnDataLoss="false", **given) == list(range(37, 50))
    assert caplog.messages == [
        "offsets 20 to 36 of t-0 are gone, its log begins at 37: continuing without it, as failOnDataLoss is "
        "false"
    ]


def test_an_end_beyond_the_log_is_lost(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        filled(data)
    given = {"startingOffsets": '{"t":{"0":90}}', "endingOffsets": '{"t":{"0":120}}'}
    with pytest.raises(DataLoss, match="offsets 100 to 119 of t-0 are not there, its log ends at 100"):
        offsets(tmp_path, **given)
    assert offsets(tmp_path, failOnDataLoss="false", **given) == list(range(90, 100))


@pytest.mark.parametrize("ending", [{}, {"endingOffsets": '{"t":{"0":-1}}'}, {"endingTimestamp": "1050"}])
def test_a_start_beyond_the_log_is_lost_and_one_at_its_end_is_not(
    tmp_path: Path, ending: dict[str, str]
) -> None:
    with writing(tmp_path) as data:
        filled(data)
    given = {"startingOffsets": '{"t":{"0":101}}', **ending}
    with pytest.raises(DataLoss, match="offset 101 of t-0 was to be read first, but its log ends at 100"):
        offsets(tmp_path, **given)
    assert offsets(tmp_path, failOnDataLoss="false", **given) == []
    assert offsets(tmp_path, startingOffsets='{"t":{"0":100}}', **ending) == []


def test_a_topic_that_is_deleted_while_its_offsets_are_looked_for(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic_id = filled(data)
        with reading(tmp_path) as directory:
            found = look(directory, Subscribe(("t",)))
            data.logs.drop(LogId(topic_id, 0))
            with pytest.raises(
                SourceError, match="t-0 is gone: its topic was deleted while the query was planned"
            ):
                finder(directory, found)(TopicPartition("t", 0), 1000)


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_what_retention_takes_between_plan_and_reading(
    tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    with writing(tmp_path, engine) as data:
        topic_id = filled(data)
        data.append(topic_id, 0, *(batch(records(100), offset) for offset in range(100, 1000, 100)))
        strict, lenient = reader(tmp_path, OFFSETS), reader(tmp_path, OFFSETS, failOnDataLoss="false")
        (planned,) = strict.partitions()
        log = next(iter(data.logs.logs()))
        data.logs.trim(log, 500)
        start = data.logs.bounds(log).start_offset
        assert 0 < start <= 500
        with pytest.raises(
            DataLoss, match=f"offsets 0 to {start - 1} of t-0 are gone, its log begins at {start}"
        ):
            list(strict.read(planned))
        with caplog.at_level(logging.WARNING):
            left = [each for found in lenient.read(planned) for each in found["offset"].to_pylist()]
        assert left == list(range(start, 1000))
        assert "failOnDataLoss" in caplog.text
        data.logs.drop(log)
        with pytest.raises(DataLoss, match="t-0 is gone, with its offsets 0 to 999"):
            list(strict.read(planned))
        assert list(lenient.read(planned)) == []


def test_a_topic_made_anew_under_the_same_name_is_another_one(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic_id = filled(data)
        found = reader(tmp_path)
        planned = found.partitions()
        data.tombstone(topic_id, "t")
        for log in list(data.logs.logs()):
            data.logs.drop(log)
        filled(data)
        with pytest.raises(DataLoss, match="t-0 is gone, with its offsets 0 to 99"):
            list(found.read(planned[0]))
        assert offsets(tmp_path) == list(range(100))


def test_a_damaged_batch_is_an_error_whatever_failOnDataLoss_says(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic_id = filled(data)
        data.append(topic_id, 0, *(batch(records(100), offset) for offset in range(100, 1000, 100)))
    first = tmp_path / "log-segment" / f"{topic_id}-0" / f"{0:020}"
    assert (first / ".index").exists()
    content = bytearray((first / "data.ninja").read_bytes())
    content[12 + int.from_bytes(content[8:12], "big") + 70] ^= 1
    (first / "data.ninja").write_bytes(content)
    with pytest.raises(
        SourceError,
        match=r"^t-0 is damaged: the record batch at offset 10 is damaged: .* look with kbroker storage "
        r"inspect",
    ):
        offsets(tmp_path, failOnDataLoss="false")
    assert offsets(tmp_path, startingOffsets='{"t":{"0":20}}') == list(range(20, 1000))


def test_what_is_missing_of_files_that_were_cut(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic_id = filled(data)
    (data_file,) = (tmp_path / "log-segment" / f"{topic_id}-0").glob("*/data.ninja")
    data_file.write_bytes(data_file.read_bytes()[:1000])
    DataDir.open(tmp_path).close()
    for ending in ("latest", '{"t":{"0":-1}}'):
        with pytest.raises(
            DataLoss,
            match=r"offsets (\d+) to 99 of t-0 cannot be read: its files are damaged or were copied in part",
        ) as caught:
            offsets(tmp_path, endingOffsets=ending)
    first = int(str(caught.value).split("offsets ")[1].split(" ")[0])
    assert offsets(tmp_path, failOnDataLoss="false") == list(range(first))
    assert offsets(tmp_path, endingOffsets=f'{{"t":{{"0":{first}}}}}') == list(range(first))


def test_a_reader_gives_its_files_back_when_nobody_reads_on(tmp_path: Path) -> None:
    with writing(tmp_path, "rocksdb") as data:
        filled(data)
        found = reader(tmp_path)
        (planned,) = found.partitions()
        rows = found.read(planned)
        next(iter(rows))
        assert len(list((tmp_path / "log-rocksdb" / "readers").iterdir())) == 1
        del rows
        assert list((tmp_path / "log-rocksdb" / "readers").iterdir()) == []


def test_a_range_is_plain_values() -> None:
    wanted = Range("t", UUID(int=1), 0, 5, 9)
    assert pickle.loads(pickle.dumps(RangePartition(wanted))).range == wanted
