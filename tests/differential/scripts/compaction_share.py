"""Share groups over the holes of a compacted log."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.formats.batches import iter_headers, iter_records
from kbroker.formats.compression import Codec
from tests.differential.compaction import CONFIGS, CompactedLog
from tests.differential.script import ACCEPT, GAP, REJECT, RELEASE, Entity, Member, Session, Value, script
from tests.differential.scripts.compaction_layout import producer
from tests.differential.scripts.share_offsets import describe
from tests.differential.transactions import transactional

FEW = {"max_records": 1, "batch_size": 1}
"""One batch in an answer, and a range for each batch. Kafka returns one segment at a time."""
RECORD_LIMIT = {"share_acquire_mode": 1}


@dataclass
class Reader:
    """A member that takes all that is ready, and acknowledges it as clients do."""

    member: Member
    log: CompactedLog
    found: list[list[Value]] = field(default_factory=list)

    def take(self, **how: Value) -> Entity:
        """A step."""
        rows = {self.log.topic: {0: ()}} if self.member.epoch == 0 else None
        return self.member.fetch(rows, **{"wait_ms": 500, **FEW, **how})

    def acknowledge(self, first: int, last: int, *types: int) -> None:
        self.member.acknowledge({self.log.topic: {0: [(first, last, list(types))]}})

    def finish(self, taken: Entity) -> None:
        """Accept the records, and gaps for the other offsets. A step."""
        acks = []
        for row in taken.responses[0].partitions:
            there = _offsets(row.records)
            for each in row.acquired_records:
                offsets = range(each.first_offset, each.last_offset + 1)
                acks.append(
                    (each.first_offset, each.last_offset, [ACCEPT if o in there else GAP for o in offsets])
                )
        self.member.acknowledge({self.log.topic: {0: acks}})

    def drain(self, **how: Value) -> None:
        """A step: the records that the member gets up to the end of the log, whatever the
        ranges."""
        s, last, mark = self.member.session, self.log.end() - 1, len(self.member.session.steps)
        seen: list[int] = []

        def all_seen() -> bool:
            taken = self.take(**how)
            if taken.responses and any(row.acquired_records for row in taken.responses[0].partitions):
                seen.extend(_taken(taken))
                self.finish(taken)
            return last in seen

        s.until(all_seen, f"the record at {last} was delivered")
        del s.steps[mark:]
        s.note("records delivered", sorted(set(seen)))


def described(reader: Reader) -> None:
    """A step: the group's start offset and lag."""
    assert reader.member.group_id is not None
    describe(reader.member.session, reader.member.group_id, {reader.log.topic.name: [0]})


def _taken(answer: Entity) -> set[int]:
    """The offsets of the records that the member holds."""
    return {
        offset
        for row in answer.responses[0].partitions
        for offset in _offsets(row.records)
        if any(each.first_offset <= offset <= each.last_offset for each in row.acquired_records)
    }


def _offsets(records: bytes) -> set[int]:
    return {
        record.offset
        for at, header in iter_headers(records)
        if not header.is_control
        for record in iter_records(records, at)
    }


def shared(s: Session, **group: str) -> tuple[CompactedLog, Reader]:
    topic, member = s.share_of(s.topic(**CONFIGS), **group)
    log = CompactedLog(s, topic, 86_400_000)
    return log, Reader(member, log)


def sparse(log: CompactedLog, codec: Codec = Codec.NONE) -> None:
    """Batches 0-2, 3, 8, 9-11 and 12-13 with the records 0, 2, 3, 8, 10, 12 and 13; those of the
    pass follow."""
    log.put("a", "b", "c", codec=codec)
    log.put("b", codec=codec)
    log.put("d", "e", "f", "d", codec=codec)
    log.put("d", codec=codec)
    log.put("e", "h", "f", codec=codec)
    log.put("e", "f", codec=codec)
    log.clean()


@script("ACQ-16", "ISO-9")
def batch_by_batch(s: Session) -> None:
    log, reader = shared(s)
    sparse(log)
    for _ in range(6):
        reader.finish(reader.take())


@script("ACQ-16")
def compressed_batches(s: Session) -> None:
    log, reader = shared(s)
    sparse(log, Codec.LZ4)
    for _ in range(4):
        reader.finish(reader.take())


@script("ACQ-16")
def several_batches_at_once(s: Session) -> None:
    """One range for all, or one for each batch."""
    log, reader = shared(s)
    sparse(log)
    reader.take(max_records=6)


@script("ACQ-16")
def in_record_limit_mode(s: Session) -> None:
    log, reader = shared(s)
    sparse(log)
    reader.take(max_records=2, batch_size=2, **RECORD_LIMIT)
    reader.acknowledge(0, 0, ACCEPT)


@script("ACQ-16")
def everything_is_delivered_in_record_limit_mode(s: Session) -> None:
    log, reader = shared(s)
    sparse(log, Codec.ZSTD)
    reader.drain(max_records=2, batch_size=2, **RECORD_LIMIT)


def with_empty_batches(log: CompactedLog) -> None:
    """Batches without records at 1, 2 and 4-5."""
    log.put("a")
    log.put("a", producer=producer(log.s, 0, 1))
    log.put("a", producer=producer(log.s, 0, 2))
    log.put("b")
    log.put("a", "a", producer=producer(log.s, 0, 3))
    log.put("a")
    log.clean()


@script("ISO-9")
def batches_without_records(s: Session) -> None:
    log, reader = shared(s)
    with_empty_batches(log)
    reader.take()


@script("ISO-9")
def everything_is_delivered_over_batches_without_records(s: Session) -> None:
    log, reader = shared(s)
    with_empty_batches(log)
    reader.drain()
    described(reader)


@script("ISO-9", "ACQ-16")
def everything_is_delivered_over_holes(s: Session) -> None:
    log, reader = shared(s)
    sparse(log)
    reader.drain()
    described(reader)
    log.put("a", "c", "d", "g")
    log.put("a", "g")
    log.clean()
    reader.drain()
    described(reader)


@script("ISO-8")
def held_records_are_compacted_away(s: Session) -> None:
    log, reader = shared(s)
    log.put("a", "b")
    log.put("c")
    log.put("d")
    for _ in range(2):
        reader.take()
    log.put("a", "c")
    log.clean()
    reader.acknowledge(0, 2, ACCEPT)
    reader.finish(reader.take())


@script("ISO-9")
def a_released_batch_is_compacted_away(s: Session) -> None:
    log, reader = shared(s)
    for key in "abc":
        log.put(key)
    for _ in range(3):
        reader.take()
    reader.acknowledge(0, 2, RELEASE)
    log.put("b")
    log.clean()
    for _ in range(3):
        reader.finish(reader.take())


@script("ISO-9", "ACQ-16")
def a_released_record_is_compacted_away(s: Session) -> None:
    log, reader = shared(s)
    log.put("a", "b", "c")
    reader.take()
    reader.acknowledge(0, 2, RELEASE)
    log.put("b")
    log.clean()
    taken = reader.take()
    reader.finish(taken)
    reader.finish(reader.take())


@script("ACQ-16")
def every_type_on_offsets_in_holes(s: Session) -> None:
    log, reader = shared(s)
    log.put("a", "b", "c", "d", "e", "f")
    log.put("b", "c", "d", "e")
    log.clean()
    reader.take()
    reader.acknowledge(0, 5, ACCEPT, GAP, ACCEPT, RELEASE, REJECT, ACCEPT)
    reader.take()
    reader.acknowledge(3, 3, GAP)
    reader.take()


@script("ACQ-16")
def holes_use_deliveries(s: Session) -> None:
    log, reader = shared(s, share_delivery_count_limit="2")
    log.put("a", "b", "c")
    log.put("b")
    log.clean()
    for _ in range(2):
        reader.take()
        reader.acknowledge(0, 2, RELEASE)
    reader.take()


@script()
def the_start_is_in_a_hole(s: Session) -> None:
    log = CompactedLog(s, s.topic(**CONFIGS), 86_400_000)
    sparse(log)
    for offset in (1, 5, 9):
        group = s.group(f"g{offset}")
        s.until(
            lambda group=group, offset=offset: alter_quietly(s, group, log, offset), "the start is altered"
        )
        describe(s, group, {log.topic.name: [0]})
        s.join(group, "m", log.topic, on=group)
        reader = Reader(s.member(group, on=group), log)
        for _ in range(2):
            reader.finish(reader.take(wait_ms=5000))


def alter_quietly(s: Session, group: str, log: CompactedLog, offset: int) -> bool:
    rows = [{"topic_name": log.topic.name, "partitions": [{"partition_index": 0, "start_offset": offset}]}]
    answer = s.attempt("alter_share_group_offsets", 0, group_id=group, topics=rows)
    return answer is not None and not (
        answer.error_code.value
        or any(row.error_code.value for topic in answer.responses for row in topic.partitions)
    )


@script("ISO-2", "ACQ-16")
def committed_records_of_a_compacted_log(s: Session) -> None:
    log, reader = shared(s, share_isolation_level="read_committed")
    t = transactional(s)
    log.put("a")
    log.send(t, "b", "c")
    t.ended(False)
    log.send(t, "d", "a")
    t.ended(True)
    log.put("e")
    log.clean()
    log.show()
    reader.drain()
    described(reader)


@script("ISO-9")
def a_pass_between_two_fetches(s: Session) -> None:
    log, reader = shared(s)
    for key in "abcd":
        log.put(key)
    reader.finish(reader.take())
    log.put("b", "c")
    log.clean()
    for _ in range(3):
        reader.finish(reader.take())
