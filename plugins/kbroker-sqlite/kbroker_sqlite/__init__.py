"""The `sqlite` engine of kbroker: the factories that the entry points name.

See log_store.py and state_store.py; database.py has everything about SQLite itself.
"""

from __future__ import annotations

from kbroker.storage.spi import LogStoreFactory, StateStoreFactory
from kbroker_sqlite import log_store, state_store

__all__ = ["LOG_STORE", "STATE_STORE"]

LOG_STORE = LogStoreFactory(open=log_store.open_store, open_reader=log_store.open_reader)
STATE_STORE = StateStoreFactory(open=state_store.open_store, open_reader=state_store.open_reader)
