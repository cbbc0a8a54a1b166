"""One topic partition of the `control-records` persister: its chains, its hint, and the offsets of
its control records.

The hint is in the state store (state.ControlHint); the early draft of KIP-932 calls it the share
snapshot file. It makes a load cheap however long the log is. The hint names the ends of the chains.
If it is open, there may be later control records, and only from its offset on is the log searched.
A log is opened, durably, before the first control record of a broker life is appended, and closed
by a clean stop. So a log without a hint has no control records, and a log with a closed hint has
none after it. Chains that begin below the log's start have ended.

After a power cut with durability `os`, a hint may name records that the log has lost. Then a chain
does not end where the hint says, and the whole log is searched.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import OnDone
from kbroker.broker.logs.partition import Partition
from kbroker.errors import KafkaError
from kbroker.formats.control_records import build_control_batch
from kbroker.formats.state import ControlHint, ControlHintKey
from kbroker.share_state.control_chains import ChainWalk, ControlChains, ShareChange, ToAppend
from kbroker.storage.spi import Change, StateReader
from kbroker_control_records.offsets import ControlOffsets
from kbroker_control_records.scan import (
    offsets_now,
    read_at,
    scan,
    scan_offsets,
    walk_back,
    walk_back_now,
)

logger = logging.getLogger(__name__)

HINT_BYTES = 64 << 20
"""A hint is renewed after so many bytes of appends. A load after a crash searches at most about as
much."""


class ControlPartition:
    def __init__(self, partition: Partition, store: StateReader, commits: GroupCommit[Change]) -> None:
        self.partition = partition
        self.chains = ControlChains()
        self.is_open = False
        self.scanned = 0
        """Offsets that a load has searched."""
        self._offsets: ControlOffsets | None = None
        self._store = store
        self._commits = commits
        self._key = ControlHintKey(partition.log.topic_id, partition.log.partition).encode()
        self._is_loaded = self._had_hint = False
        self._changing = trio.Lock()
        self._hinted_at_bytes = 0

    @property
    def has_state(self) -> bool:
        """Whether the log has control records, without reading it."""
        return self._is_loaded or self._store.get(self._key) is not None

    # -- loading

    async def load(self) -> None:
        """Find the ends of the chains, at most once. Raises KafkaError for a log that cannot be
        read."""
        if self._is_loaded:
            return
        async with self._changing:
            await self._load()

    async def _load(self) -> None:
        if self._is_loaded:
            return
        value = self._store.get(self._key)
        end = self.partition.high_watermark
        if value is not None:
            hint = ControlHint.decode(value)
            chains = ControlChains.of_hint(hint, self.partition.log_start_offset)
            await self._replay(chains, hint.offset if hint.is_open else end, end)
            if not await self._end_as_they_say(chains):
                logger.warning(
                    "%s-%d: the log has lost control records, all of it is searched for the newest",
                    *self._name,
                )
                chains = ControlChains()
                await self._replay(chains, 0, end)
            self.chains, self._had_hint = chains, True
        self._offsets = ControlOffsets(end)
        self._is_loaded = True

    @property
    def _name(self) -> tuple[str, int]:
        return self.partition.topic_name, self.partition.log.partition

    async def _replay(self, chains: ControlChains, start: int, end: int) -> None:
        start = max(start, self.partition.log_start_offset)
        self.scanned += max(0, end - start)
        if start < end:
            for offset, control in await scan(self.partition, start, end):
                chains.replay(offset, control)

    async def _end_as_they_say(self, chains: ControlChains) -> bool:
        for group_id, chain in chains.groups.items():
            try:
                control = await read_at(self.partition, chain.newest)
            except KafkaError:  # The record is damaged, which affects only requests of that group.
                continue
            if control is None or control.group_id != group_id:
                return False
        return True

    async def entries(self, group_id: str) -> list[tuple[int, bytes]]:
        """The entries that a store would have for the share coordinator: (number, value). Raises
        KafkaError, and ValueError for a broken chain."""
        chain = self.chains.chain(group_id)
        if chain is None:
            return []
        walk = ChainWalk(group_id, chain)
        await walk_back(self.partition, walk)
        return walk.entries()

    def entries_now(self, group_id: str) -> list[tuple[int, bytes]]:
        """The same without waiting. Raises StoreFailed as well."""
        chain = self.chains.chain(group_id)
        if chain is None:
            return []
        walk = ChainWalk(group_id, chain)
        walk_back_now(self.partition, walk)
        return walk.entries()

    # -- writing

    def append(self, changes: Sequence[ShareChange], on_done: OnDone) -> bool:
        """Queue control records for these changes, in the log's next commit. False: no record is
        needed, and `on_done` is not called."""
        assert self.is_open, "the open hint is saved"
        to_append = self.chains.records(changes, self.partition.next_offset)
        if not to_append.controls:
            return False
        batch = build_control_batch(to_append.controls)
        first = self.partition.next_offset
        self.partition.append_control(batch, partial(self._appended, first, to_append, on_done))
        return True

    def _appended(self, first: int, appended: ToAppend, on_done: OnDone, error: Exception | None) -> None:
        if error is None:
            self.chains.confirm(appended.ends)
            if self._offsets is not None:
                self._offsets.append(first, first + len(appended.controls) - 1)
            self._renew_hint()
        else:
            self.chains.fail()
        on_done(error)

    # -- hints

    def _hint(self, *, is_open: bool) -> Change:
        self._hinted_at_bytes = self.partition.appended_bytes
        return self._key, self.chains.hint(self.partition.high_watermark, is_open=is_open).encode()

    def _renew_hint(self) -> None:
        change = self.renewed_hint(HINT_BYTES)
        if change is not None:
            self._commits.submit([change], self._report)

    def renewed_hint(self, least_bytes: int) -> Change | None:
        """A hint if at least so much was appended since the last one."""
        is_due = self.is_open and self.partition.appended_bytes - self._hinted_at_bytes >= least_bytes
        return self._hint(is_open=True) if is_due and not self.partition.deleted else None

    def open_hint(self) -> Change:
        """Must be durable before the first append of a broker life; then the log is open."""
        return self._hint(is_open=True)

    def closed_hint(self) -> Change | None:
        """For a clean stop; no append follows."""
        if not self.is_open or self.partition.deleted:
            return None
        self.is_open = False
        return self._hint(is_open=False)

    def _report(self, error: Exception | None) -> None:
        if error is not None:
            logger.warning("%s-%d: a hint to its control records was not saved: %s", *self._name, error)

    # -- lag

    async def know_offsets(self, start: int) -> None:
        """Find the control records from `start` on. Raises KafkaError."""
        await self.load()
        assert self._offsets is not None
        start = max(start, self.partition.log_start_offset)
        async with self._changing:
            if start < self._offsets.known_from:
                end = self._offsets.known_from
                found = await scan_offsets(self.partition, start, end) if self._had_hint else []
                forgotten = offsets_now(self.partition, end, self._offsets.known_from)  # meanwhile
                self._offsets.learn(start, [*found, *forgotten])

    async def count_between(self, first: int, end: int) -> int:
        """How many of the offsets `first` to `end` - 1 are control records. Only unknown parts of
        that range are scanned; if it reaches the known ones, it is known from then on. Raises
        KafkaError."""
        await self.load()
        assert self._offsets is not None
        first = max(first, self.partition.log_start_offset)
        if first < self._offsets.known_from <= end:
            await self.know_offsets(first)
        known_from = max(first, min(end, self._offsets.known_from))
        found = []
        if first < known_from and self.chains.groups:
            found = await scan_offsets(self.partition, first, known_from)
        own = sum(last + 1 - start for start, last in found)
        return own + self.count_offsets(known_from) - self.count_offsets(end) if known_from < end else own

    def count_offsets(self, start: int) -> int:
        """How many offsets from `start` on are known to be control records."""
        return 0 if self._offsets is None else self._offsets.count(start)
