"""RocksDB: the shipped contracts."""

from __future__ import annotations

from kbroker.storage.rocksdb_store import LOG_STORE, STATE_STORE
from kbroker.testing.log_store_contract import LogStoreContract
from kbroker.testing.state_store_contract import StateStoreContract


class TestRocksdbLogStore(LogStoreContract):
    factory = LOG_STORE


class TestRocksdbStateStore(StateStoreContract):
    factory = STATE_STORE
