"""Every installed log engine keeps the promises of the LogStore SPI.

There is a class for each entry point, so that a newly registered engine is tested automatically.
Engines whose own test file runs the contract, beside tests of their specifics, are not run twice.
"""

from __future__ import annotations

import pytest

from kbroker import plugins
from kbroker.storage.segment import log_store as segment_store
from kbroker.testing.log_store_contract import LogStoreContract

ELSEWHERE = {
    "lmdb": "tests/storage/lmdb/test_lmdb.py",
    "rocksdb": "tests/storage/rocksdb/test_rocksdb.py",
    "sqlite": "plugins/kbroker-sqlite/tests/test_sqlite.py",
}

for _name in plugins.names(plugins.LOG_STORE):
    if _name not in ELSEWHERE:
        globals()[f"Test{_name.title()}"] = type(
            f"Test{_name.title()}",
            (LogStoreContract,),
            {"factory": plugins.log_store_factory(_name), "__module__": __name__},
        )


@pytest.mark.full
class TestSegmentWithFewHandles(LogStoreContract):
    """Every mapping and file is closed and reopened all the time, and nothing is synced by
    syncfs."""

    factory = segment_store.LOG_STORE
    options = {"max_maps": "1", "max_open_files": "1", "sync": "fdatasync"}  # noqa: RUF012 - a ClassVar of the base


class TestSegmentWithTwoFiles(LogStoreContract):
    """A write to three logs closes files, and syncs them before that."""

    factory = segment_store.LOG_STORE
    options = {"max_open_files": "2"}  # noqa: RUF012 - a ClassVar of the base
