"""Work for one log engine that replaces segments again and again, and the contents that a power cut
may leave: of each batch the newest form, or that of before the last step.

The script knows no segments, since engines may roll at different offsets. The worker chooses a
segment, and marks which it was.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from kbroker.formats.batches import iter_headers
from kbroker.storage.spi import LogReader, LogStore
from kbroker.testing.log_store_model import (
    check_segments,
    read_all,
    replace,
    sized_batch,
    smaller,
    stored_batches,
)
from tests.powercut.engine_script import NOW_MS, SETTINGS, Marks, Step, log_id

LOG = log_id(0)


@cache
def replaced_script(seed: int, steps: int) -> list[Step]:
    """The `offset` of a step that replaces chooses the segment, and what becomes of its batches."""
    chooser, end_offset = random.Random(seed), 0
    script = [Step("create")]
    while len(script) < steps:
        roll = chooser.random()
        if roll < 0.4:
            batches = []
            for _ in range(chooser.choice([1, 2, 5])):
                size_bytes = chooser.choice([500, 3000, 9000])
                batches.append(sized_batch(end_offset, size_bytes, log=LOG, timestamp_ms=NOW_MS))
                end_offset += 1
            script.append(Step("write", batches=batches))
        elif roll < 0.6:
            script.append(Step("sync"))
        elif roll < 0.97:
            script.append(Step("replace", offset=chooser.randrange(1000)))
        else:
            script.append(Step("reopen"))
    return script


def becomes(base_offset: int, salt: int) -> str:
    return ("gone", "smaller", "kept", "kept")[(base_offset * 7 + salt) % 4]


def work_on_replaced(store: LogStore, step: Step) -> dict[str, object]:
    """One step on the real engine; returns the content of its done-mark."""
    match step.what:
        case "create":
            store.create(LOG, SETTINGS)
        case "write":
            store.write(step.batches, now_ms=NOW_MS)
        case "sync":
            store.sync()
        case "replace":
            return {"replaced": _replace_one(store, step.offset)}
    return {}


def _replace_one(store: LogStore, salt: int) -> tuple[int, int]:
    """The range of offsets; (0, 0) if there is no sealed segment yet."""
    *sealed, _ = store.segments(LOG)
    if not sealed:
        return 0, 0
    base_offset, end_offset, _, _ = sealed[salt % len(sealed)]
    new = [
        smaller(old) if becomes(old.base_offset, salt) == "smaller" else old
        for old in stored_batches(store, LOG, base_offset, end_offset)
        if becomes(old.base_offset, salt) != "gone"
    ]
    replace(store, LOG, base_offset, new, in_steps=salt % 2 == 0)
    return base_offset, end_offset


def check_replaced(
    reader: LogReader, script: Sequence[Step], marks: Marks, replaced: Sequence[tuple[int, int]]
) -> None:
    """Raises AssertionError if the store breaks a promise. `replaced`: the ranges of the steps
    that are done."""
    possible: list[set[bytes | None]] = []
    small: list[bytes] = []
    synced, ranges = 0, iter(replaced)
    for place, step in enumerate(script[: marks.begun]):
        is_done = place < marks.done
        if step.what == "write":
            possible += [{bytes(batch.data)} for batch in step.batches]
            small += [bytes(smaller(batch).data) for batch in step.batches]
        elif step.what == "sync" and is_done:
            synced = len(possible)
        elif step.what == "replace":
            first, end = next(ranges) if is_done else (0, len(possible))
            for offset in range(first, end):
                new = _after(possible[offset], small[offset], becomes(offset, step.offset))
                possible[offset] = new if is_done else new | possible[offset]
    if LOG not in reader.logs():
        assert marks.done == 0
        return
    start_offset, end_offset = reader.bounds(LOG)
    assert start_offset == 0
    assert synced <= end_offset <= len(possible)
    data = read_all(reader, LOG)
    found = {each.base_offset: data[at : at + each.size_bytes] for at, each in iter_headers(data)}
    assert all(offset < end_offset for offset in found)
    for offset in range(end_offset):
        assert found.get(offset) in possible[offset], f"offset {offset} is neither old nor new"
    check_segments(reader, LOG, replaced=True)


def _after(forms: set[bytes | None], small: bytes, change: str) -> set[bytes | None]:
    if change == "kept":
        return forms
    return {None if change == "gone" or form is None else small for form in forms}
