"""Entry points of the `lmdb` engine: both SPIs over LMDB, with an environment each. See
lmdb/log_store.py and lmdb/state_store.py."""

from __future__ import annotations

from kbroker.storage.lmdb import log_store as lmdb_log_store
from kbroker.storage.lmdb import state_store as lmdb_state_store
from kbroker.storage.spi import LogStoreFactory, StateStoreFactory

LOG_STORE = LogStoreFactory(open=lmdb_log_store.open_store, open_reader=lmdb_log_store.open_reader)
STATE_STORE = StateStoreFactory(open=lmdb_state_store.open_store, open_reader=lmdb_state_store.open_reader)
