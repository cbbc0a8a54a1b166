"""`kbroker` of commit 633126e1 that stops half way, for write_queues.py.

    python -m tests.formats.queue_faults FOLDER start ...

- The task of dead letters stays at a step of the two stores, for the queues in HELD.
- The cleaner of ended generations stays after its first piece.
- A write fails once for each file `fault` in FOLDER, whose text is one of FAULTS.
- Work queues are checked often, so that records are soon kept beside the log.

A file in FOLDER notes that a task has arrived where it stays. The names of modules are texts: they
are those of that commit, and later versions need not have them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import trio

HELD: Mapping[str, tuple[str, ...]] = {
    "_write": ("archiving", "expired", "kept"),
    "_archive": ("written", "written-parked"),
    "_drop_reasons": ("settled",),
}
"""Queues by the step of their dead letters that never begins: write them, save their records as
archived, remove their reasons."""
FAILING = "failed"
"""The group whose writes fail."""
PIECE = 20
OFTEN_S = 0.1


def hold_dead_letters(folder: Path) -> None:
    kind: Any = import_module("kbroker.broker.queues.dead_letters").DeadLetters

    def hold(method: str, queues: Sequence[str]) -> None:
        original = getattr(kind, method)

        async def held(self: Any, work: Any, *arguments: Any) -> Any:
            if work.key[0] in queues and (method != "_drop_reasons" or work.ended):
                (folder / f"reached-{work.key[0]}").touch()
                await trio.sleep_forever()
            return await original(self, work, *arguments)

        setattr(kind, method, held)

    for method, queues in HELD.items():
        hold(method, queues)


def hold_cleaner(folder: Path) -> None:
    """In the middle of the first generation that it removes."""
    module: Any = import_module("kbroker.broker.persisters.parked_cleaner")
    read, pieces = module.ParkedCleaner._read, 0
    module.AT_ONCE = PIECE

    async def held(self: Any, first: bytes, end: bytes, limit: int) -> list[bytes]:
        nonlocal pieces
        pieces += limit == PIECE
        if pieces == 2:
            (folder / "reached-purged").touch()
            await trio.sleep_forever()
        found: list[bytes] = await read(self, first, end, limit)
        return found

    module.ParkedCleaner._read = held


def _is_state(items: Sequence[Any]) -> bool:
    return any(FAILING.encode() in key for key, _ in items)


def _is_removal(items: Sequence[Any]) -> bool:
    """Of old places, beside the number of parked records."""
    values = [value for key, value in items if FAILING.encode() in key]
    return None in values and len([value for value in values if value is not None]) <= 1


def _is_log(items: Sequence[Any]) -> bool:
    return any(FAILING.encode() in bytes(item.data) for item in items)


FAULTS: Mapping[str, tuple[str, Callable[[Sequence[Any]], bool], bool]] = {
    "refuse-state": ("state", _is_state, False),
    "fail-state": ("state", _is_state, True),
    "refuse-removals": ("state", _is_removal, False),
    "refuse-log": ("log", _is_log, False),
}
"""The store, which of its writes, and whether the write arrives although it is said to fail."""


def fail_writes(folder: Path) -> None:
    errors: Any = import_module("kbroker.errors")
    kind: Any = import_module("kbroker.broker.commits.group_commit").GroupCommit
    begin, fault = kind.__init__, folder / "fault"

    def write(name: str, original: Callable[[Any], None], items: Any) -> None:
        if fault.exists():
            store, is_wanted, arrives = FAULTS[fault.read_text()]
            if name == store and is_wanted(items):
                fault.unlink()
                if arrives:
                    original(items)
                raise errors.NoSpace("the disk is full")
        original(items)

    def init(self: Any, name: str, original: Callable[[Any], None], *rest: Any, **named: Any) -> None:
        begin(self, name, partial(write, name, original), *rest, **named)

    kind.__init__ = init


if __name__ == "__main__":
    place = Path(sys.argv.pop(1))
    retention: Any = import_module("kbroker.broker.logs.retention")
    retention.WORK_QUEUE_CHECK_S = OFTEN_S
    hold_dead_letters(place)
    hold_cleaner(place)
    fail_writes(place)
    import_module("kbroker.cli").main()
