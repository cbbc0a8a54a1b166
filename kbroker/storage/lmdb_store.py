"""The `lmdb` engine's door: both SPIs over LMDB, an environment each. See lmdb_log_store.py and lmdb_state_store.py."""

from __future__ import annotations

from kbroker.storage import lmdb_log_store, lmdb_state_store
from kbroker.storage.spi import LogStoreFactory, StateStoreFactory

LOG_STORE = LogStoreFactory(open=lmdb_log_store.open_store, open_reader=lmdb_log_store.open_reader)
STATE_STORE = StateStoreFactory(open=lmdb_state_store.open_store, open_reader=lmdb_state_store.open_reader)
