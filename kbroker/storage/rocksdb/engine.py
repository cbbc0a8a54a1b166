"""Entry points of the `rocksdb` engine: both SPIs over RocksDB, with a database each. See
rocksdb/log_store.py and rocksdb/state_store.py."""

from __future__ import annotations

from kbroker.storage.rocksdb import log_store as rocksdb_log_store
from kbroker.storage.rocksdb import state_store as rocksdb_state_store
from kbroker.storage.spi import LogStoreFactory, StateStoreFactory

LOG_STORE = LogStoreFactory(open=rocksdb_log_store.open_store, open_reader=rocksdb_log_store.open_reader)
STATE_STORE = StateStoreFactory(
    open=rocksdb_state_store.open_store, open_reader=rocksdb_state_store.open_reader
)
