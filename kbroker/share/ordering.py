"""The order of keys in an in-flight window: key_order.py decides which record is first, this module
turns that into codes of the columns. Pure.

    offset    12 A   13 C   14 -   15 A     16 B     17 C
    states    H      .      .      BEHIND   BEHIND   BEHIND        9 B is parked

A record that is BEHIND cannot be acquired, so members pass it at no cost. The records that were in
the window when the order began (after a load, or a change of the setting) are learnt first, by
offset.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.share.in_flight import InFlightWindow
from kbroker.share.key_order import KeyOrder
from kbroker.share.record_state import (
    AVAILABLE,
    CONTROL,
    DEAD_LETTER_CODES,
    HANDED_OUT_CODES,
    HOLE,
    PASSABLE,
    PASSABLE_IN_GAP,
    PASSED,
    TERMINAL_CODES,
    WAITING,
)
from kbroker.share.redelivery import Waits

_OVER = frozenset((*TERMINAL_CODES, *DEAD_LETTER_CODES, *HANDED_OUT_CODES))
_NO_RECORD = frozenset((HOLE, CONTROL, PASSED))
_PIECE = 512


class Keys(NamedTuple):
    """What a scan found, up to the offset `up_to`.

    - `hashes`: of keys, by offset. A record with a null key has none.
    - `parked`: by hash, the parked records in the store that wait for their redelivery.
    """

    hashes: Mapping[int, int]
    parked: Mapping[int, Sequence[int]]
    up_to: int


def begin(window: InFlightWindow) -> KeyOrder:
    return KeyOrder(window.start_offset, window.end_offset if window.states else window.start_offset - 1)


def learn_at(window: InFlightWindow, order: KeyOrder) -> int | None:
    """The next offset whose key is not known yet. None: all are known."""
    if order.has_learnt:
        return None
    offset, passed = (
        max(order.learn_from, window.start_offset),
        PASSABLE_IN_GAP if window.gap_open else PASSABLE,
    )
    while offset <= min(order.learn_to, window.end_offset) and window.states:
        piece = window.states[offset - window.base : offset - window.base + _PIECE]
        left = len(piece.lstrip(passed))
        offset += len(piece) - left
        if left:
            break
    else:
        offset = order.learn_to + 1
    order.learn_from = offset
    return None if order.has_learnt else offset


def know(window: InFlightWindow, order: KeyOrder, hashes: Mapping[int, int]) -> list[int]:
    """Note the hashes of records in the window. Returns those whose hashes were not known."""
    known = []
    for offset, key_hash in hashes.items():
        if (
            window.start_offset <= offset <= window.end_offset
            and window.states
            and order.hash_of(offset) is None
        ):
            code = window.states[offset - window.base]
            if code == AVAILABLE or not (code in _OVER or code in _NO_RECORD or order.has_learnt):
                order.know(offset, key_hash)
                known.append(offset)
    return known


def join(
    window: InFlightWindow, order: KeyOrder, waits: Waits, offsets: Iterable[int], put_off: Container[int]
) -> None:
    """Records that were just found join the order, by offset; `put_off`: those that are due
    later."""
    for offset in offsets:
        code = window.states[offset - window.base]
        if code == AVAILABLE and not (
            window.counts[offset - window.base] and _goes_before_new_ones(window, order, offset)
        ):
            admit(window, order, offset)
        elif offset not in put_off and not (code == WAITING and waits.is_scheduled(offset)):
            _hold(window, order, offset)


def _goes_before_new_ones(window: InFlightWindow, order: KeyOrder, offset: int) -> bool:
    """True if the record was delivered before, and all active records of its key were not:
    scheduled records with a lower offset."""
    others = order.active_beside(offset)
    return bool(others) and all(
        window.code_at(other) == AVAILABLE and not window.counts[other - window.base] for other in others
    )


def _hold(window: InFlightWindow, order: KeyOrder, offset: int) -> None:
    """A member has the record, or it waits for redelivery: records of its key that were found
    earlier go behind it."""
    key_hash = order.hash_of(offset)
    assert key_hash is not None
    order.hold(offset, key_hash)
    for other in order.active_beside(offset):
        if window.code_at(other) == AVAILABLE:
            admit(window, order, other)


def admit(window: InFlightWindow, order: KeyOrder, offset: int) -> bool:
    """The record is AVAILABLE. True if it stays so."""
    if order.admit(offset):
        return True
    window.put_behind(offset)
    return False


def admit_due(window: InFlightWindow, order: KeyOrder, offset: int, *, knows_all: bool) -> bool:
    """The record has waited, and is AVAILABLE. A scheduled record is BEHIND until the store has
    been searched for its key, unless everything that may block the key is in memory."""
    key_hash = order.hash_of(offset)
    if knows_all or key_hash is None or order.is_active(offset):
        return admit(window, order, offset)
    order.asked[offset] = key_hash
    window.put_behind(offset)
    return False


def gate(window: InFlightWindow, order: KeyOrder, runs: Iterable[tuple[int, int]]) -> None:
    """Records of these runs that have returned go behind records of their keys that members hold.
    Of those that returned together, the first stays in front."""
    for offset in reversed(list(order.known_in(runs))):
        if window.code_at(offset) == AVAILABLE and not order.is_parked(offset):
            admit(window, order, offset)


def end_saved(window: InFlightWindow, order: KeyOrder, runs: Sequence[tuple[int, int]]) -> None:
    """The state of these runs is saved: finished records free their keys."""
    for offset in order.known_in(runs):
        if not order.is_parked(offset):
            code = window.code_at(offset)
            if code is None or code in _OVER:
                order.end(offset)
    gate(window, order, runs)


def end_lost(order: KeyOrder, runs: Iterable[tuple[int, int]]) -> None:
    """The log no longer has these records."""
    for offset in order.known_in(runs):
        if not order.is_parked(offset):
            order.end(offset)
