"""Record batches (kbroker/formats/batches.py): the cost of each produced batch, each fetch and each
read of records.

- *check*: the checks of a produced batch before it is queued: header, CRC and the topic's rules.
- *walk*: reads the headers of 1 MiB of batches of 1 KiB. `iter_headers` does so plainly,
  `iter_possible` also detects damage (look-ups by time, dead letters). A share fetch detects damage
  too, and stores the position of each batch.
- *records*: reads the records of a batch.
- *build*: makes a batch, as the broker does for dead letters and group records. Producers and
  consumers do that themselves.

Nothing is compressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from kbroker.broker.logs.stored_batches import iter_possible
from kbroker.broker.logs.validation import BatchRules, validate
from kbroker.broker.queues.sliced_batches import walk
from kbroker.formats.batches import (
    Record,
    build_batch,
    crc_is_valid,
    iter_headers,
    iter_records,
    read_header,
    stamp,
)
from perf.parts.material import KIB, MIB, NOW_MS, batch_of, batch_of_records, named
from perf.parts.part import Part

_RULES = BatchRules(max_message_bytes=2 * MIB)
_SIZES = [KIB, 16 * KIB, 128 * KIB, MIB]


@pytest.mark.parametrize("size", _SIZES, ids=named)
@pytest.mark.parametrize("what", ["validate", "CRC alone", "header alone", "copy and stamp"])
def test_check(part: Part, size: int, what: str) -> None:
    batch = batch_of(size)
    header = read_header(batch)

    def copy() -> None:
        stamp(bytearray(memoryview(batch)), base_offset=7, leader_epoch=1)

    works = {
        "validate": lambda: validate(batch, _RULES, NOW_MS),
        "CRC alone": lambda: crc_is_valid(batch, 0, header),
        "header alone": lambda: read_header(batch),
        "copy and stamp": copy,
    }
    part.repeat(works[what], thing="batch", size=size, group=f"batches, check: {named(size)}", name=what)


@pytest.mark.parametrize("what", ["iter_headers", "iter_possible", "as share fetches do"])
def test_walk(part: Part, what: str) -> None:
    count = MIB // KIB
    batches = [bytearray(batch_of(KIB)) for _ in range(count)]
    for number, batch in enumerate(batches):
        stamp(batch, base_offset=number, leader_epoch=0)
    view = memoryview(b"".join(batches))

    ways: dict[str, Callable[[], Iterable[object]]] = {
        "iter_headers": lambda: iter_headers(view),
        "iter_possible": lambda: iter_possible([view], count),
        "as share fetches do": lambda: walk([view], 0, count, count),
    }

    def go() -> int:
        return sum(1 for _ in ways[what]())

    assert go() == count
    part.repeat(
        go, things=count, thing="batch", size=MIB, group="batches, walk: 1 MiB of batches of 1 KiB", name=what
    )


@pytest.mark.parametrize("value_bytes", [100, 1000])
def test_records(part: Part, value_bytes: int) -> None:
    count = 100_000 // value_bytes
    batch = batch_of_records(count, value_bytes)
    assert sum(1 for _ in iter_records(batch)) == count
    part.repeat(
        lambda: list(iter_records(batch)), things=count, thing="record", size=len(batch),
        group="batches, records: read", name=f"{count} values of {value_bytes} bytes",
    )  # fmt: skip


@pytest.mark.parametrize("value_bytes", [100, 1000])
def test_build(part: Part, value_bytes: int) -> None:
    count = 100_000 // value_bytes
    records = [Record(0, NOW_MS, None, bytes(value_bytes))] * count
    size = len(build_batch(records))
    part.repeat(
        lambda: build_batch(records), things=count, thing="record", size=size,
        group="batches, records: build", name=f"{count} values of {value_bytes} bytes",
    )  # fmt: skip
