"""Share state in control records (kbroker.persister=control-records), read from a partition's log
as a broker would load it.

The hint in the state store has the offsets of each group's newest records, as of a certain offset.
If the hint is open, newer records may follow that offset. A log that has lost records which the
hint mentions (a power cut with durability `os`) is scanned from its beginning. While a broker runs,
retention may remove a checkpoint during the search; a newer one exists then, and the search is
repeated.

Must not know Spark, nor the meaning of states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.errors import KafkaError
from kbroker.formats.batches import MAGIC, BatchHeader, iter_headers
from kbroker.formats.compression import CorruptPayload
from kbroker.formats.control_records import ShareControl, read_controls
from kbroker.formats.state import ControlChain, ControlHint
from kbroker.share_state.control_chains import ChainWalk, ControlChains
from kbroker.share_state.control_walk import advanced, decoded_at, walking
from kbroker.storage.spi import LogBounds, LogId, LogReader

_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 10


class GroupEntries(NamedTuple):
    """A group's snapshot and updates, as (number, value) in order. `problem`: why they cannot be
    read, or None."""

    group: str
    entries: list[tuple[int, bytes]]
    problem: str | None


def read_groups(logs: LogReader, log: LogId, hint: ControlHint) -> list[GroupEntries]:
    """The entries of all groups with state in this log. Raises KeyError if the log was deleted,
    ValueError if it cannot be scanned."""
    found: list[GroupEntries] = []
    for _ in range(_ATTEMPTS):
        before = logs.bounds(log)
        chains = _chains(logs, log, hint, before)
        found = [_read_group(logs, log, group, chain) for group, chain in sorted(chains.groups.items())]
        if all(each.problem is None for each in found) or logs.bounds(log) == before:
            break
    return found


def control_batches(
    logs: LogReader, log: LogId, start: int, end: int
) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """(view, position, header) of each control batch with offsets in [start, end). Raises
    ValueError for damage in that range."""
    offset = start
    while offset < end:
        views = logs.read(log, offset, max_bytes=_CHUNK_BYTES, end_offset=end)
        if not views:
            return
        before = offset
        for view in views:
            for position, header in iter_headers(view):
                if header.magic != MAGIC or header.last_offset < offset:
                    raise ValueError(f"what is stored at offset {offset} is not a record batch")
                if header.is_control:
                    yield view, position, header
                offset = header.last_offset + 1
        if offset == before:
            raise ValueError(f"what is stored at offset {offset} is not a record batch")


def controls(logs: LogReader, log: LogId, start: int, end: int) -> Iterator[tuple[int, ShareControl]]:
    """(offset, record) of the share state in [start, end). Raises ValueError for a batch that
    cannot be read."""
    for view, position, header in control_batches(logs, log, start, end):
        try:
            yield from read_controls(view, position, header)
        except CorruptPayload as error:
            raise ValueError(str(error)) from error


def _chains(logs: LogReader, log: LogId, hint: ControlHint, bounds: LogBounds) -> ControlChains:
    chains = ControlChains(hint.groups)
    if hint.is_open:
        _replay(logs, log, chains, hint.offset, bounds)
    if not all(_ends_there(logs, log, group, chain) for group, chain in chains.groups.items()):
        chains = ControlChains()
        _replay(logs, log, chains, 0, bounds)
    return chains


def _replay(logs: LogReader, log: LogId, chains: ControlChains, start: int, bounds: LogBounds) -> None:
    for offset, control in controls(logs, log, max(start, bounds.start_offset), bounds.end_offset):
        chains.replay(offset, control)


def _ends_there(logs: LogReader, log: LogId, group: str, chain: ControlChain) -> bool:
    try:
        control = decoded_at(
            logs.read(log, chain.newest, max_bytes=1, end_offset=chain.newest + 1), chain.newest
        )
    except KafkaError:  # The record exists but is damaged, which concerns this group only.
        return True
    return control is not None and control.group_id == group


def _read_group(logs: LogReader, log: LogId, group: str, chain: ControlChain) -> GroupEntries:
    walk = ChainWalk(group, chain)
    try:
        reading = walking(walk)
        wanted = next(reading, None)
        while wanted is not None:
            wanted = advanced(
                reading, logs.read(log, wanted.offset, max_bytes=wanted.max_bytes, end_offset=wanted.end)
            )
    except KafkaError as error:
        return GroupEntries(group, [], error.message)
    except ValueError as error:
        return GroupEntries(group, [], str(error))
    return GroupEntries(group, walk.entries(), None)
