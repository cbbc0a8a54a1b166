"""The second phase of dead letters (KIP-1191): from ARCHIVING over the dead letter topic to
ARCHIVED, each of them exactly once.

    ARCHIVING saved, ──▶ dead letters      ──▶ ARCHIVED ──▶ cursor
    with a cursor        appended, synced      saved        removed
                   crash: the records    crash: the dead letters are
                   are found, and the    found in the topic, and not
                   letters written       written again

The topic and the state are in two stores without a common transaction. So a share-partition with
ARCHIVING records has a cursor in the state store: the partition that has its dead letters, and the
offset at which they begin. The default persister saves the cursor in the commit that makes the
first record ARCHIVING. In any case it is saved before a dead letter is appended. It covers every
dead letter whose record may still be ARCHIVING on disk. Only when there is no such record may
another cursor replace it (another topic, more partitions, a much later offset).

When a share-partition with ARCHIVING records is loaded, the dead letters from its cursor on are
searched once, to find the records that already have theirs. At the broker's start, share-partitions
with a cursor are loaded without waiting for a client.

Each share-partition with a cursor has one task. If the disk refuses a write, it retries
indefinitely, 1 s to 30 s apart. If the settings allow no dead letter, it archives the records
without one. Both are counted and logged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from kbroker.broker.queues.dead_letter_counters import GroupDeadLetters
from kbroker.broker.queues.dead_letter_room import LetterRoom, is_kept_for_groups
from kbroker.broker.queues.dead_letter_writer import (
    NEEDS_KEYS,
    CannotCopy,
    DeadLetterWriter,
    NoRoom,
    NotYet,
    Portion,
    encode_letters,
    read_records,
    search,
    without_key,
)
from kbroker.broker.queues.loaded import DeadLetterHooks, Key, LoadedSharePartition
from kbroker.broker.queues.share_partitions import SharePartitions
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import iter_records
from kbroker.formats.state import DeadLetterCursor, DeadLetterKey, read_entries
from kbroker.share import archiving
from kbroker.share.dead_letter import MESSAGES, Origin
from kbroker.share.effects import DeadLetter
from kbroker.share.persister import REJECTED, Persister, ReadRequest, TopicPartition
from kbroker.share.reasons import Reason
from kbroker.share.runs import runs_of
from kbroker.share.share_partition import SharePartition
from kbroker.storage.spi import Change, StateStore

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
ROOM_RETRY_S = 0.5
"""Retention removes segments of queues every few seconds. To look for room costs little."""
LINGER_S = 1.0
"""How long an unneeded cursor is kept: usually the next rejection comes soon and reuses it."""
OFFSETS_AT_ONCE = 1000
"""Dead letters that are written and saved together."""
_REASONS_AT_ONCE = 250
"""In one read: 2 MiB at most."""
CURSOR_LAG = 10_000
"""Offsets by which a cursor may be behind; after a crash each share-partition reads that much."""


@dataclass(slots=True, eq=False)
class Work:
    """The dead letters of one share-partition, `topic` its name: what its task and the events that
    wake it know.

    - `cursor`: the one in the state store, or on its way there; `saved` is decided when it is there
    - `known`: the engine that knows all dead letters of its ARCHIVING records; another engine has
      to search for them
    - `uncertain`: a record with a dead letter may be ARCHIVING on disk, because a save has failed
    - `no_room`: why the disk has no room for dead letters at present; `waiting`: how many wait
    - `stuck`: why records cannot be copied at present; their topic keeps them for the group
    """

    key: Key
    topic: str
    cursor: DeadLetterCursor | None = None
    saved: Decision = field(default_factory=Decision)
    known: SharePartition | None = None
    uncertain: bool = False
    no_room: NoRoom | None = None
    waiting: int = 0
    stuck: dict[int, str] = field(default_factory=dict)
    woken: trio.Event = field(default_factory=trio.Event)
    is_running: bool = False
    closed: bool = False

    @property
    def waiting_bytes(self) -> int:
        """About how many bytes of dead letters wait for room on the disk."""
        return 0 if self.no_room is None else round(self.waiting * self.no_room.letter_bytes)

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


class DeadLettersStatistics(NamedTuple):
    """`share_partitions` that have dead letters to write, or had until a moment ago. `groups`: a
    copy of each group's counters. `waiting_bytes`: by group, about how many bytes of dead letters
    wait for room on the disk."""

    share_partitions: int
    groups: dict[str, GroupDeadLetters]
    waiting_bytes: Mapping[str, int]


class DeadLetters(DeadLetterHooks):
    """Carries out the events of SharePartitions (DeadLetterHooks) in tasks of its own."""

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
        self._room = LetterRoom(topics, writer.disk_floor)
        self._commits = commits
        self._works: dict[Key, Work] = {}
        self._groups: dict[str, GroupDeadLetters] = {}
        self._background = background
        share_partitions.notify(self)

    def statistics(self) -> DeadLettersStatistics:
        groups = {group_id: replace(each) for group_id, each in self._groups.items()}
        waiting = dict.fromkeys(groups, 0)
        for (group_id, _), work in self._works.items():
            waiting[group_id] = waiting.get(group_id, 0) + work.waiting_bytes
        return DeadLettersStatistics(len(self._works), groups, waiting)

    def load(self, store: StateStore) -> None:
        """Load the stored cursors at start, and begin with their tasks."""
        for key, cursor in read_entries(store.scan(DeadLetterKey.namespace)):
            assert isinstance(key, DeadLetterKey)
            assert isinstance(cursor, DeadLetterCursor)
            work = self._work((key.group_id, TopicPartition(key.topic_id, key.partition)))
            work.cursor = cursor
            work.saved.decide(None)
            self._start(work)

    # -- events (DeadLetterHooks)

    def before_save(self, loaded: LoadedSharePartition) -> None:
        """Records are about to be saved as ARCHIVING, by a write in the same step. The cursor joins
        its commit."""
        work = self._work(loaded.key)
        if work.cursor is None and not loaded.partition.deleted:
            work.known = loaded.engine
            self._put_cursor(work, self._first_cursor(loaded))

    def wake(self, loaded: LoadedSharePartition) -> None:
        """There may be dead letters to write, state to save again, or a cursor to remove."""
        self._start(self._work(loaded.key))

    def loaded(self, loaded: LoadedSharePartition) -> None:
        """A share-partition was loaded from its saved state."""
        assert loaded.engine is not None
        work = self._works.get(loaded.key)
        if archiving.has_archiving(loaded.engine):
            self.wake(loaded)
        elif work is not None:
            # The cursor's records are finished, or the state was reset and the dead letters behind
            # the cursor do not belong to it.
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

    def _first_cursor(self, loaded: LoadedSharePartition) -> DeadLetterCursor:
        """Where dead letters would go at present. Nothing is checked, and they may go elsewhere
        later."""
        name = self._configs.dead_letter_queue(loaded.key[0]).topic
        topic = self._topics.by_name(name)
        if topic is None:
            return DeadLetterCursor(None, name, 0, 0)
        return _cursor_at(topic.partitions[loaded.partition.log.partition % len(topic.partitions)])

    def _put_cursor(self, work: Work, cursor: DeadLetterCursor) -> None:
        work.cursor, work.saved = cursor, Decision()
        self._commits.submit(
            [(work.state_key, cursor.encode())], partial(work.cursor_saved, cursor, work.saved)
        )

    def _remove_cursor(self, work: Work) -> None:
        if work.cursor is not None:
            work.cursor = None
            self._commits.submit([(work.state_key, None)], _report_left_cursor)

    async def _have_cursor(self, work: Work, target: Partition) -> None:
        """On return a stored cursor covers all later appends to `target`. Raises NoSpace,
        StoreFailed, NotYet."""
        cursor = work.cursor
        if cursor is not None:
            place = cursor.topic_id, cursor.partition
            is_there = place == target.log and cursor.offset <= target.high_watermark
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

    def _work(self, key: Key) -> Work:
        work = self._works.get(key)
        if work is None:
            topic = self._topics.by_id(key[1].topic_id)
            work = self._works[key] = Work(key, str(key[1].topic_id) if topic is None else topic.name)
        return work

    def _start(self, work: Work) -> None:
        work.woken.set()
        if not work.is_running:
            work.is_running = True
            self._background.start(self._run, work)

    def _close(self, work: Work) -> None:
        """Remove the cursor of a share-partition with nothing left to do."""
        work.closed = True
        self._remove_cursor(work)
        if self._works.get(work.key) is work:
            del self._works[work.key]

    async def _run(self, work: Work) -> None:
        retry_s, copy_again_at = FIRST_RETRY_S, math.inf
        while not work.closed:
            work.woken = trio.Event()
            if trio.current_time() >= copy_again_at:
                work.stuck, copy_again_at = {}, math.inf
                retry_s = min(2 * retry_s, LAST_RETRY_S)
            try:
                loaded = await self._find(work)
                if loaded is None:
                    self._close(work)
                    return
                with self._room.writing(work.key):
                    has_worked = await self._turn(work, loaded)
            except CannotCopy as error:
                # Others that are rejected meanwhile do not put it off.
                copy_again_at = min(copy_again_at, trio.current_time() + retry_s)
                self._counters(work).delay(str(work), error, copy_again_at - trio.current_time())
                with trio.move_on_at(copy_again_at):
                    await work.woken.wait()
                continue
            except NoRoom:
                self._counters(work).put_off(str(work), work.waiting, work.waiting_bytes)
                await trio.sleep(ROOM_RETRY_S)
                continue
            except Exception as error:
                # The error affects this queue only. If it were raised here, it would end the
                # broker.
                self._counters(work).delay(str(work), error, retry_s)
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
                continue
            retry_s = retry_s if work.stuck else FIRST_RETRY_S
            if has_worked:
                continue
            with trio.move_on_after(LINGER_S):
                await work.woken.wait()
            if not work.woken.is_set():
                self._end(work, loaded)

    def _end(self, work: Work, loaded: LoadedSharePartition) -> None:
        """Called after a while with nothing to do: end the work, unless records are still
        ARCHIVING."""
        present = self._share_partitions.find(*work.key) or loaded
        if present is loaded and loaded.engine is not None and not archiving.has_archiving(loaded.engine):
            self._close(work)
            self._share_partitions.retire_unless_used(loaded)

    async def _find(self, work: Work) -> LoadedSharePartition | None:
        """The loaded share-partition; None if it no longer exists. Raises KafkaError."""
        group_id, partition = work.key
        source = self._topics.partition(*partition)
        if source is None:
            return None
        if source.deleted:
            raise NotYet("its topic is being deleted")
        loaded = self._share_partitions.find(group_id, partition)
        if loaded is None:
            # A group that was deleted just before a crash, or whose start is undecided again, has
            # no ARCHIVING records.
            request = ReadRequest(partition, source.leader_epoch)
            (summary,) = await self._persister.read_summary(group_id, [request])
            if summary.code is ErrorCode.none and summary.start_offset < 0:
                return None
        return await self._share_partitions.load(group_id, partition)

    async def _turn(self, work: Work, loaded: LoadedSharePartition) -> bool:
        """Write one portion of dead letters; False if there are none. Raises the error that
        prevents it."""
        engine = loaded.engine
        assert engine is not None
        # Dead letters and another cursor have to wait for changes whose save has failed.
        nothing_under_way = not engine.statistics().writes_under_way
        await self._share_partitions.saving.must_save(loaded, engine.retry_unsaved())
        if nothing_under_way and work.known is engine:
            work.uncertain = False
        letters = archiving.take(engine)
        if not letters:
            self._note_room(work, loaded, None, 0)
            return False
        done, error = set[int](), None
        try:
            if work.known is engine:
                done, error = await self._write(work, loaded, letters)
            else:
                done = await self._find_written(work, loaded, letters)
        finally:
            archiving.give_back(engine, runs_of(offset for offset, _ in _each(letters) if offset not in done))
        if loaded.gone:
            return False
        if done:
            await self._archive(work, loaded, engine, done)
        if error is not None:
            raise error
        if work.known is not engine:
            work.known, work.uncertain = engine, False
        return True

    async def _find_written(
        self, work: Work, loaded: LoadedSharePartition, letters: Sequence[DeadLetter]
    ) -> set[int]:
        """Offsets whose dead letter was written before the share-partition was loaded. Raises
        StoreFailed."""
        cursor, (group_id, partition) = work.cursor, work.key
        if cursor is None or cursor.topic_id is None:
            return set()
        target = self._topics.partition(cursor.topic_id, cursor.partition)
        if target is None:
            return set()
        source = group_id, loaded.partition.topic_name, partition.partition
        written = await search(target, cursor.offset, source)
        found = {offset for offset, _ in _each(letters) if offset in written}
        count = sum(1 for _ in _each(letters))
        logger.info("share-partition %s: %d of %d dead letters were written before", work, len(found), count)
        return found

    async def _write(
        self, work: Work, loaded: LoadedSharePartition, letters: Sequence[DeadLetter]
    ) -> tuple[set[int], Exception | None]:
        """The offsets that are finished, and the error that prevents others. Raises the errors of
        _have_cursor, KafkaError, NoRoom, and CannotCopy if only records that cannot be copied are
        left."""
        count = sum(letter.last_offset - letter.first_offset + 1 for letter in letters)
        try:
            room = self._room.find(loaded, letters[0].first_offset, work.no_room)
        except NoRoom:
            self._note_room(work, loaded, work.no_room, count)  # It may have been loaded again.
            raise
        queue = self._configs.dead_letter_queue(work.key[0])
        target = await self._writer.find_partition(queue.topic, loaded.partition)
        if isinstance(target, str):
            self._counters(work).refuse(str(work), target, count)
            return {offset for offset, _ in _each(letters)}, None
        await self._have_cursor(work, target)
        eligible = (
            each for each in _each(letters) if each[0] < room.end_offset and each[0] not in work.stuck
        )
        causes = dict(islice(eligible, OFFSETS_AT_ONCE))
        if not causes:
            raise CannotCopy(work.key[0], f"{work.topic}-{work.key[1].partition}", work.stuck)
        portion = Portion(max(causes), {})
        if any(queue.contents):
            portion = await read_records(loaded.partition, list(causes))
            portion = await self._with_kept(loaded, list(causes), portion)
        if queue.contents.key_and_value and is_kept_for_groups(self._topics, loaded.partition):
            work.stuck.update(portion.unread)
        place = loaded.partition.topic_name, work.key[1].partition
        origins = [
            Origin(*place, offset, work.key[0], letter.delivery_count, MESSAGES[letter.cause])
            for offset, letter in causes.items()
            if offset <= portion.last_offset and offset not in work.stuck
        ]
        keyless = without_key(target.topic.rules, origins, portion.records, queue.contents)
        if keyless:
            self._counters(work).refuse(str(work), NEEDS_KEYS.format(queue.topic), len(keyless))
            origins = [each for each in origins if each.offset not in keyless]
        reasons = await self._reasons_of(work, [each.offset for each in origins])
        batches = await encode_letters(
            target.topic.rules, origins, portion.records, queue.contents, reasons, room.batch_bytes
        )
        if loaded.gone:
            return set(), None
        written = await self._writer.append(target, batches, last_half=room.is_last_half)
        no_room = written.error if isinstance(written.error, NoRoom) else None
        if room.is_last_half and no_room is None:
            no_room = work.no_room  # Other letters have no room yet.
        self._note_room(work, loaded, no_room, count - len(written.offsets))
        without_copy = sum(offset not in portion.records for offset in written.offsets)
        self._counters(work).written(str(work), written, without_copy if queue.contents.key_and_value else 0)
        return written.offsets | keyless, written.error

    def _note_room(
        self, work: Work, loaded: LoadedSharePartition, no_room: NoRoom | None, waiting: int
    ) -> None:
        """While dead letters wait for room, their records do not count as in flight, so that the
        jobs behind them are delivered."""
        work.no_room, work.waiting = no_room, waiting
        engine = loaded.engine
        if engine is not None and engine.window.letters_wait != (no_room is not None):
            engine.window.letters_wait = no_room is not None
            loaded.waiters.wake_all()

    async def _with_kept(
        self, loaded: LoadedSharePartition, offsets: Sequence[int], portion: Portion
    ) -> Portion:
        """Add kept records that have left the log. Raises KafkaError."""
        parking = None if loaded.engine is None else loaded.engine.parking
        if parking is None:
            return portion
        records = dict(portion.records)
        for offset in offsets:
            if offset <= portion.last_offset and offset not in records and parking.may_be_kept(offset):
                batch = await self._share_partitions.parked.record_of(loaded, offset)
                records.update({record.offset: record for record in iter_records(batch)} if batch else {})
        unread = {offset: reason for offset, reason in portion.unread.items() if offset not in records}
        return portion._replace(records=records, unread=unread)

    async def _archive(
        self, work: Work, loaded: LoadedSharePartition, engine: SharePartition, offsets: set[int]
    ) -> None:
        """Make these records ARCHIVED, and remove their reasons in the same write. Raises
        KafkaError if that cannot be saved."""
        try:
            loaded.void_reasons.update(await self._reasons_of(work, sorted(offsets)))
        except KafkaError as unread:
            what = "reasons of dead letters that are written were not removed, the next start does it: %s"
            logger.warning(what, unread)
        persist = archiving.dead_lettered(engine, runs_of(offsets))
        loaded.waiters.wake_all()
        try:
            await self._share_partitions.saving.must_save(loaded, persist)
        except KafkaError:
            work.uncertain = True
            raise

    async def _reasons_of(self, work: Work, offsets: Sequence[int]) -> dict[int, Reason]:
        """The reasons of rejections (share/reasons.py) of the records at these rising offsets, as
        far as they have any. Raises KafkaError."""
        rows, wanted, found = self._persister.waiting_rows, frozenset(offsets), dict[int, Reason]()
        at, end = (offsets[0], offsets[-1] + 1) if offsets else (0, 0)
        while rows is not None and at < end:
            some = await rows.read_from(*work.key, REJECTED, at, end, _REASONS_AT_ONCE)
            found.update((offset, reason) for offset, reason in some if offset in wanted)
            if len(some) < _REASONS_AT_ONCE:
                break
            at = some[-1].offset + 1
        return found

    def _counters(self, work: Work) -> GroupDeadLetters:
        if work.closed:  # Its group may be deleted, and unfinished work must not recreate the counters.
            return GroupDeadLetters()
        return self._groups.setdefault(work.key[0], GroupDeadLetters())


def _cursor_at(target: Partition) -> DeadLetterCursor:
    """The cursor of a share-partition that has no dead letters in `target`, nor any under way."""
    return DeadLetterCursor(target.log.topic_id, target.topic_name, target.log.partition, target.next_offset)


def _each(letters: Sequence[DeadLetter]) -> Iterator[tuple[int, DeadLetter]]:
    for letter in letters:
        for offset in range(letter.first_offset, letter.last_offset + 1):
            yield offset, letter


def _report_left_cursor(error: Exception | None) -> None:
    if error is not None:
        logger.warning(
            "a cursor of dead letters was not removed, the next start checks whether it is needed: %s", error
        )
