"""The `rocksdb` engine's door: both SPIs over RocksDB, a database each. See rocksdb_log_store.py and rocksdb_state_store.py."""

from __future__ import annotations

from kbroker.storage import rocksdb_log_store, rocksdb_state_store
from kbroker.storage.spi import LogStoreFactory, StateStoreFactory

LOG_STORE = LogStoreFactory(open=rocksdb_log_store.open_store, open_reader=rocksdb_log_store.open_reader)
STATE_STORE = StateStoreFactory(open=rocksdb_state_store.open_store, open_reader=rocksdb_state_store.open_reader)
