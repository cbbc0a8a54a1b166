"""A pass stays cheap: the calls that it makes for each record are counted, never timed.

The limits are a tenth above what is needed now. Before records were read by field, each phase made
about 24 calls a record, whatever the size of the batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import kbroker.compaction.offset_arrays
import kbroker.formats.record_arrays  # noqa: F401  Loaded before, since that takes calls as well.
from kbroker.compaction.batch_cleaning import CleaningPass, PassRules
from kbroker.compaction.mapping import add_keys
from kbroker.compaction.offset_map import OffsetMap
from kbroker.compaction.transactions import SeenTransactions
from kbroker.formats.batches import Record, build_batch
from tests.compaction.logs import NOW_MS, RETENTION_MS

_RECORDS = 4_000
_KEYS = 3_000


def calls_of(work: Callable[[], None]) -> int:
    """Of Python and of C functions."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("size", "most_to_map", "most_to_clean"), [(1_000, 2.5, 2.4), (16, 18.0, 15.2)])
def test_the_calls_for_a_record_are_few(size: int, most_to_map: float, most_to_clean: float) -> None:
    """`size`: records in a batch."""
    batches = [
        build_batch(
            [Record(0, NOW_MS, b"%d" % (at % _KEYS), b"v" * 1000) for at in range(base, base + size)],
            base_offset=base,
        )
        for base in range(0, _RECORDS, size)
    ]
    latest, seen = OffsetMap(1 << 20, _RECORDS), SeenTransactions([])
    rules = PassRules(NOW_MS, RETENTION_MS, _RECORDS, {})
    cleaning = CleaningPass(rules, latest, SeenTransactions([]))

    def fill() -> None:
        for batch in batches:
            assert add_keys(latest, seen, batch)

    def clean() -> None:
        for batch in batches:
            cleaning.clean(batch)

    to_map, to_clean = calls_of(fill) / _RECORDS, calls_of(clean) / _RECORDS
    print(f"{size} records in a batch: {to_map:.2f} calls to map one, {to_clean:.2f} to clean it")
    assert cleaning.removed_records == _RECORDS - _KEYS
    assert to_map <= most_to_map
    assert to_clean <= most_to_clean
