"""The log after a pass, batch by batch: headers and records."""

from __future__ import annotations

from kbroker.formats.batches import ProducerInfo
from kbroker.formats.compression import Codec
from tests.differential.compaction import CompactedLog, compacted
from tests.differential.script import Session, script
from tests.differential.scripts.base_produce import altered


def producer(s: Session, sequence: int, number: int = 1, epoch: int = 0) -> ProducerInfo:
    """An id that no broker has given out; every log has its own producers."""
    producer_id = 7_000_000 + number
    s.names.producer(producer_id)
    return ProducerInfo(producer_id, epoch, sequence)


def several_segments(log: CompactedLog) -> None:
    """Batches that lose all records, some of them, and none."""
    log.put("a", "b", "c")
    log.put("a")
    log.cut()
    log.put("d", "a", "e")
    log.put("b", "b")
    log.cut()
    log.put("e", "f", "b")


@script()
def each_key_has_its_latest_record(s: Session) -> None:
    log = compacted(s)
    several_segments(log)
    log.show("before")
    log.clean()
    log.show()


@script()
def nothing_is_overwritten(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b")
    log.put("c", codec=Codec.GZIP)
    log.put("d", "e", codec=Codec.ZSTD)
    log.clean()
    log.show()


@script()
def records_go_from_every_place_of_a_batch(s: Session) -> None:
    log = compacted(s)
    for gone in ("a", "b", "c", "ab", "bc", "ac", "abc"):
        log.put(*(f"{each}-{gone}" for each in "abc"))
    log.cut()
    log.put(*(f"{each}-{gone}" for gone in ("a", "b", "c", "ab", "bc", "ac", "abc") for each in gone))
    log.clean()
    log.show()


@script()
def a_key_several_times_in_a_batch(s: Session) -> None:
    log = compacted(s)
    log.put("a", "a", "b", "a", "b")
    log.put("c", "c")
    log.clean()
    log.show()


@script()
def codecs_are_kept(s: Session) -> None:
    log = compacted(s)
    for codec in Codec:
        log.put(f"gone {codec}", f"stays {codec}", f"also {codec}", codec=codec)
    for codec in Codec:
        log.put(f"gone {codec}", codec=codec)
    log.clean()
    log.show()


@script()
def codecs_of_batches_without_records(s: Session) -> None:
    log = compacted(s)
    for number, codec in enumerate(Codec):
        log.put("a", "b", codec=codec, producer=producer(s, 0, number))
    log.put("a", "b")
    log.clean()
    log.show()


@script()
def headers_keys_and_values(s: Session) -> None:
    log = compacted(s)
    headers = (("h", b"1"), ("", b""), ("h", None), ("long", b"x" * 200))
    log.put("a", "b", "c", headers=headers)
    log.put(("", "empty key"), ("b", ""), ("ü", "ü"), headers=headers)
    log.put(("", "empty key again"), ("k" * 300, "v" * 300))
    log.clean()
    log.show()


@script()
def times_of_records(s: Session) -> None:
    """The greatest time is found among the records that stay."""
    log = compacted(s)
    log.put("a", "b", "c", times=(500, 100, 300))
    log.put("d", "e", "f", times=(100, 900, 300))
    log.put("g", "h", "i", times=(0, 400, 200))
    log.cut()
    log.put("a", "e", "g")
    log.clean()
    log.show()


@script()
def batches_without_a_time(s: Session) -> None:
    log = compacted(s)
    for batch in (log.batch("a", "b"), log.batch("b", "c")):
        log.append(altered(batch, base_timestamp=-1, max_timestamp=0))
    log.put("a")
    log.clean()
    log.show()


@script()
def times_of_the_broker(s: Session) -> None:
    log = compacted(s, message_timestamp_type="LogAppendTime")
    log.put("a", "b", "c")
    log.put("d", ("e", None), codec=Codec.LZ4)
    log.put("a", producer=producer(s, 0))
    gone = log.put("a", "d")
    log.put("a", "d")
    log.close()
    log.run_until_gone(gone)
    log.show()


@script()
def the_type_of_times_changes(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b", "c")
    log.alter(message_timestamp_type="LogAppendTime")
    s.until(lambda: _stamped(log), "the broker stamps batches")
    log.put("b", "d", "e")
    log.alter(message_timestamp_type="CreateTime")
    s.until(lambda: not _stamped(log), "the broker stamps no batches")
    log.put("d")
    log.clean()
    s.note("layout", [row for row in log.batches() if row["records"][0][2] != "probe"])


def _stamped(log: CompactedLog) -> bool:
    """Whether a batch gets the broker's time."""
    offset = log.put("probe")
    return bool(log.batches_from(offset)[0]["flags"])


@script()
def the_last_batch_of_a_producer_stays(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b", producer=producer(s, 0))
    log.put("a", producer=producer(s, 2))
    log.put("a", "b", producer=producer(s, 0, 2, epoch=3))
    log.put("b", producer=producer(s, 2, 2, epoch=3))
    log.put("a", "b", "c")
    log.clean()
    log.show()


@script()
def an_empty_batch_goes_when_its_producer_writes_again(s: Session) -> None:
    log = compacted(s)
    log.put("a", producer=producer(s, 0))
    log.put("a", producer=producer(s, 0, 2))
    log.put("a")
    log.clean()
    log.show()
    log.put("b", producer=producer(s, 1))
    log.clean()
    log.show("after another pass")
    log.put("b")
    log.clean()
    log.show("after a third pass")


@script()
def part_of_a_producer_s_last_batch_stays(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b", "c", producer=producer(s, 0))
    log.put("b", "c")
    log.clean()
    log.show()
    log.put("a")
    log.clean()
    log.show("after another pass")


@script()
def producers_continue_after_a_pass(s: Session) -> None:
    """Sequences, and repeated batches whose records are gone."""
    log = compacted(s)
    first = log.batch("a", producer=producer(s, 0))
    log.append(first)
    second = log.batch("a", "b", producer=producer(s, 1))
    log.append(second)
    log.put("a", "b")
    log.clean()
    for batch in (
        second,
        first,
        log.batch("c", producer=producer(s, 5)),
        log.batch("c", producer=producer(s, 3)),
    ):
        rows = [{"name": log.topic.name, "partition_data": [{"index": 0, "records": batch}]}]
        s.call("produce", 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=rows)
    s.call(
        "describe_producers", 0, topics=[{"name": log.topic.name, "partition_indexes": [0]}],
    )  # fmt: skip
    log.show()


@script()
def several_passes(s: Session) -> None:
    log = compacted(s)
    for turn in range(3):
        several_segments(log)
        log.put(f"turn {turn}")
        log.clean()
        log.show(f"after pass {turn + 1}")


@script()
def many_small_segments(s: Session) -> None:
    log = compacted(s)
    for number in range(12):
        log.put(f"key {number % 4}", f"own {number}")
        log.cut()
    log.clean()
    log.show()


@script()
def segments_that_lose_everything(s: Session) -> None:
    log = compacted(s)
    for _ in range(4):
        log.put("a", "b")
        log.put("b")
        log.cut()
    log.put("c")
    log.clean()
    log.show()
    log.put("b", "a", "c")
    log.clean()
    log.show("after another pass")


@script()
def a_topic_of_one_key(s: Session) -> None:
    log = compacted(s)
    for _ in range(5):
        log.put("~")
    log.clean()
    log.show()


@script()
def segments_end_by_their_size(s: Session) -> None:
    log = compacted(s)
    filler = "x" * 5000
    log.put("a", "b")
    gone = log.put(("filler", filler), "a")
    log.put(("filler", filler), "b")
    log.put(("filler", filler))
    log.run_until_gone(gone)
    rows = log.batches()
    for row in rows:
        row["records"] = [each[:3] for each in row["records"]]
    s.note("layout", rows)


@script()
def offsets_that_no_record_had(s: Session) -> None:
    """Two hundred records of a batch, of which two stay."""
    log = compacted(s)
    log.put("a", *["b"] * 200, "c", codec=Codec.SNAPPY)
    log.put(*["d"] * 150)
    log.clean()
    log.show()
