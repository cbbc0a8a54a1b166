"""A segment store whose process is gone, and the store that is opened after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.testing.faulty_files import FaultyFiles


def crash(store: SegmentLogStore) -> None:
    """The process is gone: nothing is synced, saved or removed any more."""
    if not store._failures.closed:
        store._failures.closed = True
        store._release()


@contextmanager
def reopened(
    directory: Path, files: FaultyFiles | None = None, options: Mapping[str, str] | None = None
) -> Iterator[SegmentLogStore]:
    store = SegmentLogStore(directory, options, files=files)
    try:
        yield store
    finally:
        store.close()
