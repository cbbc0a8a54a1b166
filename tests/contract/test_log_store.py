"""Every built-in log engine keeps the promises of the LogStore SPI."""

from __future__ import annotations

from kbroker.storage import memory_store, segment_store
from kbroker.testing.log_store_contract import LogStoreContract


class TestMemory(LogStoreContract):
    factory = memory_store.LOG_STORE


class TestSegment(LogStoreContract):
    factory = segment_store.LOG_STORE
