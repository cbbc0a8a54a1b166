"""The second phase of dead letters (KIP-1191): from ARCHIVING over the dead letter topic to
ARCHIVED, each of them exactly once.

    ARCHIVING saved, with a cursor ──▶ dead letters appended, synced ──▶ ARCHIVED saved ──▶ cursor removed
           crash: they are found and written         crash: they are found in the topic and not
                                                     written again

The topic lies in another store than the state, and there is no transaction over both. So a
share-partition that has ARCHIVING records has a cursor in the state store: in which partition its
dead letters are to be found, and from which offset on. With the default persister it goes into the
commit that makes the first record ARCHIVING; in any case it is saved before a dead letter is
appended. It covers every dead letter whose record may still be ARCHIVING on disk. Another cursor
takes its place (another topic, more partitions, an offset that is much later) only when there is no
such record.

A share-partition that was loaded with ARCHIVING records looks from its cursor on for those that
have their dead letter; one that is at work knows. At the broker's start those with a cursor are
loaded, and need not wait for a client.

One task per share-partition that has a cursor. What the disk refuses it tries again, 1 s to 30 s
apart, without end; what is wrong with the settings archives the records without a dead letter. Both
are counted and logged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import NamedTuple

import trio

from kbroker.broker.commits.background import Background
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import Decision
from kbroker.broker.configs import Configs
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topics
from kbroker.broker.queues.dead_letter_writer import (
    DeadLetterWriter,
    NoDeadLetter,
    NotYet,
    Portion,
    Written,
    read_records,
    search,
)
from kbroker.broker.queues.loaded import DeadLetterHooks, Key, LoadedSharePartition
from kbroker.broker.queues.share_partitions import SharePartitions
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.batches import iter_records
from kbroker.formats.state import DeadLetterCursor, DeadLetterKey, read_entries
from kbroker.share.dead_letter import MESSAGES, Origin
from kbroker.share.effects import DeadLetter
from kbroker.share.persister import Persister, ReadRequest, TopicPartition
from kbroker.share.runs import runs_of
from kbroker.share.share_partition import SharePartition
from kbroker.storage.spi import Change, StateStore

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
LINGER_S = 1.0
"""How long a cursor is kept that nothing needs: the next rejection mostly comes soon, and finds it
there."""
OFFSETS_AT_ONCE = 1000
"""Dead letters that are written and saved in one go."""
CURSOR_LAG = 10_000
"""Offsets by which a cursor may be behind: what is read after a crash, for each share-partition."""
_REPORT_EVERY_S = 60.0


class _Trouble(Enum):
    """What is reported, each once in a while: a disk that was full must not hide that records are
    lost for the queue now."""

    NOT_YET = auto()
    DELAYED = auto()
    REFUSED = auto()
    WITHOUT_COPY = auto()


@dataclass(slots=True)
class GroupDeadLetters:
    """Counters of one group, since the start of the broker or the group's first dead letter.
    `records` were written; batches were appended in `produce_requests`, of which `failed_requests`
    were refused by the disk; `refused` records were archived without a dead letter since something
    is wrong with the settings; `without_copy` have one without the copy that they should have
    had."""

    records: int = 0
    produce_requests: int = 0
    failed_requests: int = 0
    refused: int = 0
    without_copy: int = 0
    _next_report_s: dict[_Trouble, float] = field(default_factory=dict, repr=False, compare=False)

    def may_report(self, trouble: _Trouble) -> bool:
        """True now and then: what goes wrong for one record does so for thousands."""
        now_s = trio.current_time()
        if now_s < self._next_report_s.get(trouble, -math.inf):
            return False
        self._next_report_s[trouble] = now_s + _REPORT_EVERY_S
        return True


class DeadLettersStatistics(NamedTuple):
    """`share_partitions` that have dead letters to write, or had a moment ago; `groups`: a copy of
    each group's counters."""

    share_partitions: int
    groups: dict[str, GroupDeadLetters]


class _Work:
    """One share-partition's dead letters. `cursor` is the one in the state store, or on its way
    there; `saved` tells when it is.

    `known`: the engine whose ARCHIVING records have no dead letter that it does not know of;
    another one has to look for them. `uncertain`: a record may be ARCHIVING on disk that has its
    dead letter, because a save has failed.
    """

    __slots__ = ("closed", "cursor", "is_running", "key", "known", "saved", "topic", "uncertain", "woken")

    def __init__(self, key: Key, topic: str) -> None:
        self.key = key
        self.topic = topic
        self.cursor: DeadLetterCursor | None = None
        self.saved = Decision()
        self.known: SharePartition | None = None
        self.uncertain = False
        self.woken = trio.Event()
        self.is_running = False
        self.closed = False

    def cursor_saved(self, cursor: DeadLetterCursor, saved: Decision, error: Exception | None) -> None:
        if error is not None and self.cursor is cursor:
            self.cursor = None
        saved.decide(error)

    @property
    def state_key(self) -> bytes:
        group_id, (topic_id, partition) = self.key
        return DeadLetterKey(topic_id, partition, group_id).encode()

    def __str__(self) -> str:
        return f"{self.key[0]}:{self.topic}-{self.key[1].partition}"


class DeadLetters(DeadLetterHooks):
    """What SharePartitions tells (DeadLetterHooks in share_partitions.py), and the tasks that follow
    from it."""

    def __init__(
        self,
        topics: Topics,
        configs: Configs,
        share_partitions: SharePartitions,
        persister: Persister,
        writer: DeadLetterWriter,
        commits: GroupCommit[Change],
        background: Background,
    ) -> None:
        self._topics = topics
        self._configs = configs
        self._share_partitions = share_partitions
        self._persister = persister
        self._writer = writer
        self._commits = commits
        self._works: dict[Key, _Work] = {}
        self._groups: dict[str, GroupDeadLetters] = {}
        self._background = background
        share_partitions.notify(self)

    def statistics(self) -> DeadLettersStatistics:
        return DeadLettersStatistics(
            len(self._works), {group_id: replace(each) for group_id, each in self._groups.items()}
        )

    def load(self, store: StateStore) -> None:
        """Take in the stored cursors, at start."""
        for key, cursor in read_entries(store.scan(DeadLetterKey.namespace)):
            assert isinstance(key, DeadLetterKey)
            assert isinstance(cursor, DeadLetterCursor)
            work = self._work((key.group_id, TopicPartition(key.topic_id, key.partition)))
            work.cursor = cursor
            work.saved.decide(None)
            self._start(work)

    # -- what SharePartitions tells
    # --------------------------------------------------------------------------------------

    def before_save(self, loaded: LoadedSharePartition) -> None:
        """Records are about to be saved as ARCHIVING, by a write that follows in the same step: the
        cursor goes into its group."""
        work = self._work(loaded.key)
        if work.cursor is None and not loaded.partition.deleted:
            work.known = loaded.engine
            self._put_cursor(work, self._first_cursor(loaded))

    def wake(self, loaded: LoadedSharePartition) -> None:
        """There may be dead letters to write, a state to be saved again, or a cursor that nothing
        needs."""
        self._start(self._work(loaded.key))

    def loaded(self, loaded: LoadedSharePartition) -> None:
        """A share-partition was read from its saved state."""
        assert loaded.engine is not None
        work = self._works.get(loaded.key)
        if loaded.engine.has_archiving:
            self.wake(loaded)
        elif work is not None:
            # What the cursor was for is done with, or its state was reset: dead letters behind it
            # are not of this state.
            self._remove_cursor(work)

    def forget_group(self, group_id: str) -> None:
        for work in [each for (group, _), each in self._works.items() if group == group_id]:
            self._close(work)
        self._groups.pop(group_id, None)

    def forget_topic(self, topic: Sequence[Partition]) -> None:
        keys = {TopicPartition(partition.log.topic_id, partition.log.partition) for partition in topic}
        for work in [each for (_, partition), each in self._works.items() if partition in keys]:
            self._close(work)

    # -- cursors
    # ----------------------------------------------------------------------------------------------

    def _first_cursor(self, loaded: LoadedSharePartition) -> DeadLetterCursor:
        """For where dead letters would go at present; nothing is checked, and they may go elsewhere
        later."""
        name = self._configs.dead_letter_queue(loaded.key[0]).topic
        topic = self._topics.by_name(name)
        if topic is None:
            return DeadLetterCursor(None, name, 0, 0)
        return _cursor_at(topic.partitions[loaded.partition.log.partition % len(topic.partitions)])

    def _put_cursor(self, work: _Work, cursor: DeadLetterCursor) -> None:
        work.cursor, work.saved = cursor, Decision()
        self._commits.submit(
            [(work.state_key, cursor.encode())], partial(work.cursor_saved, cursor, work.saved)
        )

    def _remove_cursor(self, work: _Work) -> None:
        if work.cursor is not None:
            work.cursor = None
            self._commits.submit([(work.state_key, None)], _report_left_cursor)

    async def _have_cursor(self, work: _Work, target: Partition) -> None:
        """On return a stored cursor covers what is appended to `target` from now on. Raises
        NoSpace, StoreFailed, NotYet."""
        cursor = work.cursor
        if cursor is not None:
            is_there = (
                cursor.topic_id,
                cursor.partition,
            ) == target.log and cursor.offset <= target.high_watermark
            if is_there and (work.uncertain or target.high_watermark - cursor.offset < CURSOR_LAG):
                await work.saved.wait()
                return
            if work.uncertain:
                raise NotYet(f"dead letters in topic {cursor.topic} are still to be noted")
        if work.closed:
            raise NotYet("its group or its topic is gone")
        self._put_cursor(work, _cursor_at(target))
        await work.saved.wait()

    # -- the task of one share-partition
    # -----------------------------------------------------------------------------

    def _work(self, key: Key) -> _Work:
        work = self._works.get(key)
        if work is None:
            topic = self._topics.by_id(key[1].topic_id)
            work = self._works[key] = _Work(key, str(key[1].topic_id) if topic is None else topic.name)
        return work

    def _start(self, work: _Work) -> None:
        work.woken.set()
        if not work.is_running:
            work.is_running = True
            self._background.start(self._run, work)

    def _close(self, work: _Work) -> None:
        """There is nothing more to be done for it; its cursor goes."""
        work.closed = True
        self._remove_cursor(work)
        if self._works.get(work.key) is work:
            del self._works[work.key]

    async def _run(self, work: _Work) -> None:
        retry_s = FIRST_RETRY_S
        while not work.closed:
            work.woken = trio.Event()
            try:
                loaded = await self._find(work)
                if loaded is None:
                    self._close(work)
                    return
                has_worked = await self._turn(work, loaded)
            except Exception as error:
                # Whatever it is, it concerns this queue alone; raised from here it would end the
                # broker.
                self._report_delay(work, error, retry_s)
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
                continue
            retry_s = FIRST_RETRY_S
            if has_worked:
                continue
            with trio.move_on_after(LINGER_S):
                await work.woken.wait()
            if not work.woken.is_set():
                self._end(work, loaded)

    def _end(self, work: _Work, loaded: LoadedSharePartition) -> None:
        """There was nothing to be done for a while. Mostly that is the end of it, and nothing is
        kept."""
        present = self._share_partitions.find(*work.key)
        if (
            loaded.engine is None
            or loaded.engine.has_archiving
            or (present is not None and present is not loaded)
        ):
            return
        self._close(work)
        self._share_partitions.retire_unless_used(loaded)

    async def _find(self, work: _Work) -> LoadedSharePartition | None:
        """The share-partition, loaded; None if there is none any more. Raises KafkaError."""
        group_id, partition = work.key
        source = self._topics.partition(*partition)
        if source is None:
            return None
        if source.deleted:
            raise NotYet("its topic is being deleted")
        loaded = self._share_partitions.find(group_id, partition)
        if loaded is None:
            # A group that was deleted just before a crash, or whose start is undecided again, has
            # no records that are ARCHIVING.
            summary = (
                await self._persister.read_summary(group_id, [ReadRequest(partition, source.leader_epoch)])
            )[0]
            if summary.code is ErrorCode.none and summary.start_offset < 0:
                return None
        return await self._share_partitions.load(group_id, partition)

    async def _turn(self, work: _Work, loaded: LoadedSharePartition) -> bool:
        """Do a portion of what is to be done; False if there is nothing. Raises whatever stands in
        the way."""
        engine = loaded.engine
        assert engine is not None
        await self._save_again(work, loaded, engine)
        letters = engine.take_dead_letters()
        if not letters:
            return False
        done, error = set[int](), None
        try:
            if work.known is engine:
                done, error = await self._write(work, loaded, letters)
            else:
                done = await self._find_written(work, loaded, letters)
        finally:
            engine.give_back_dead_letters(
                runs_of(offset for offset, _ in _each(letters) if offset not in done)
            )
        if loaded.gone:
            return False
        if done:
            await self._archive(work, loaded, engine, done)
        if error is not None:
            raise error
        if work.known is not engine:
            work.known, work.uncertain = engine, False
        return True

    async def _save_again(self, work: _Work, loaded: LoadedSharePartition, engine: SharePartition) -> None:
        """What could not be saved before; without it there is no dead letter, and no other cursor.
        Raises KafkaError."""
        nothing_under_way = not engine.statistics().writes_under_way
        persist = engine.retry_unsaved()
        if (
            persist is not None
            and (error := await self._share_partitions.saving.save(loaded, persist)) is not None
        ):
            raise error
        if nothing_under_way and work.known is engine:
            work.uncertain = False

    async def _find_written(
        self, work: _Work, loaded: LoadedSharePartition, letters: Sequence[DeadLetter]
    ) -> set[int]:
        """Which of these have their dead letter from before the share-partition was loaded. Raises
        StoreFailed."""
        cursor, (group_id, partition) = work.cursor, work.key
        target = (
            None
            if cursor is None or cursor.topic_id is None
            else self._topics.partition(cursor.topic_id, cursor.partition)
        )
        if target is None or cursor is None:
            return set()
        written = await search(
            target, cursor.offset, group_id, loaded.partition.topic_name, partition.partition
        )
        found = {offset for offset, _ in _each(letters) if offset in written}
        count = sum(1 for _ in _each(letters))
        logger.info("share-partition %s: %d of %d dead letters were written before", work, len(found), count)
        return found

    async def _write(
        self, work: _Work, loaded: LoadedSharePartition, letters: Sequence[DeadLetter]
    ) -> tuple[set[int], Exception | None]:
        """The offsets that are done with, and what stands in the way of others. Raises as
        _have_cursor, and KafkaError."""
        queue = self._configs.dead_letter_queue(work.key[0])
        target = await self._writer.find_partition(queue.topic, loaded.partition)
        if isinstance(target, NoDeadLetter):
            refused = {offset for offset, _ in _each(letters)}
            self._refused(work, target.reason, len(refused))
            return refused, None
        await self._have_cursor(work, target)
        causes = dict(islice(_each(letters), OFFSETS_AT_ONCE))
        portion = Portion(max(causes), {})
        if any(queue.contents):
            portion = await read_records(loaded.partition, list(causes))
            portion = await self._with_kept(loaded, list(causes), portion)
        if loaded.gone:
            return set(), None
        origins = [
            _origin(work.key, loaded.partition, offset, causes[offset])
            for offset in causes
            if offset <= portion.last_offset
        ]
        written = await self._writer.append(target, origins, portion.records, queue.contents)
        self._count(work, written, target)
        return written.offsets | written.too_large, written.error

    async def _with_kept(
        self, loaded: LoadedSharePartition, offsets: Sequence[int], portion: Portion
    ) -> Portion:
        """Records that the log has no more, and that are kept, come along. Raises KafkaError."""
        parking = None if loaded.engine is None else loaded.engine.parking
        if parking is None:
            return portion
        records = dict(portion.records)
        for offset in offsets:
            if offset <= portion.last_offset and offset not in records and parking.may_be_kept(offset):
                batch = await self._share_partitions.parked.record_of(loaded, offset)
                records.update({record.offset: record for record in iter_records(batch)} if batch else {})
        return portion._replace(records=records)

    async def _archive(
        self, work: _Work, loaded: LoadedSharePartition, engine: SharePartition, offsets: set[int]
    ) -> None:
        """These are ARCHIVED, at once in memory. Raises KafkaError if that is not saved."""
        persist = engine.dead_lettered(runs_of(offsets))
        loaded.waiters.wake_all()
        if persist is not None:
            error = await self._share_partitions.saving.save(loaded, persist)
            if error is not None:
                work.uncertain = True
                raise error

    # -- counting and telling
    # ----------------------------------------------------------------------------------------

    def _count(self, work: _Work, written: Written, target: Partition) -> None:
        counters = self._counters(work)
        counters.records += len(written.offsets)
        counters.produce_requests += written.batches
        counters.failed_requests += written.failed_batches
        if written.error is None and written.without_copy:
            counters.without_copy += written.without_copy
            self._report_missing_copies(work, written.without_copy, counters, target)
        if written.too_large:
            self._refused(
                work,
                f"max.message.bytes of topic {target.topic_name} is too little for a dead letter",
                len(written.too_large),
            )

    @staticmethod
    def _report_missing_copies(
        work: _Work, count: int, counters: GroupDeadLetters, target: Partition
    ) -> None:
        if counters.may_report(_Trouble.WITHOUT_COPY):
            what = (
                "share-partition %s: %d dead letters are without the copy that they should have (%d of "
                "the group so far)"
            )
            why = ", since the records cannot be read, or are too large for topic %s"
            logger.warning(what + why, work, count, counters.without_copy, target.topic_name)

    def _counters(self, work: _Work) -> GroupDeadLetters:
        if work.closed:  # Its group may be deleted: what is under way still must not bring the counters back.
            return GroupDeadLetters()
        return self._groups.setdefault(work.key[0], GroupDeadLetters())

    def _refused(self, work: _Work, reason: str, count: int) -> None:
        counters = self._counters(work)
        counters.refused += count
        if counters.may_report(_Trouble.REFUSED):
            what = (
                "share-partition %s: %d records (%d of the group so far) are archived without a dead "
                "letter: %s"
            )
            logger.warning(what, work, count, counters.refused, reason)

    def _report_delay(self, work: _Work, error: Exception, retry_s: float) -> None:
        if not isinstance(error, KafkaError | NoSpace | StoreFailed | NotYet):
            logger.exception("dead letters of share-partition %s have to wait", work)
            return
        trouble, level = (
            (_Trouble.NOT_YET, logging.INFO)
            if isinstance(error, NotYet)
            else (_Trouble.DELAYED, logging.WARNING)
        )
        if self._counters(work).may_report(trouble):
            logger.log(
                level,
                "dead letters of share-partition %s have to wait, the next try is in %.0f s: %s",
                work,
                retry_s,
                error,
            )


def _cursor_at(target: Partition) -> DeadLetterCursor:
    """From where on dead letters of a share-partition will be that has none there, and none on the
    way."""
    return DeadLetterCursor(target.log.topic_id, target.topic_name, target.log.partition, target.next_offset)


def _each(letters: Sequence[DeadLetter]) -> Iterator[tuple[int, DeadLetter]]:
    for letter in letters:
        for offset in range(letter.first_offset, letter.last_offset + 1):
            yield offset, letter


def _origin(key: Key, source: Partition, offset: int, letter: DeadLetter) -> Origin:
    return Origin(
        source.topic_name, source.log.partition, offset, key[0], letter.delivery_count, MESSAGES[letter.cause]
    )


def _report_left_cursor(error: Exception | None) -> None:
    if error is not None:
        logger.warning(
            "a cursor of dead letters was not removed: the next start looks whether there is something to "
            "do: %s",
            error,
        )
