"""Every installed state engine keeps the promises of the StateStore SPI; see test_log_store.py."""

from __future__ import annotations

from kbroker import plugins
from kbroker.testing.state_store_contract import StateStoreContract

ELSEWHERE = {
    "lmdb": "tests/storage/lmdb/test_lmdb.py",
    "rocksdb": "tests/storage/rocksdb/test_rocksdb.py",
    "segment": "tests/storage/segment_state/test_store.py",
    "sqlite": "plugins/kbroker-sqlite/tests/test_sqlite.py",
}

for _name in plugins.names(plugins.STATE_STORE):
    if _name not in ELSEWHERE:
        globals()[f"Test{_name.title()}"] = type(
            f"Test{_name.title()}",
            (StateStoreContract,),
            {"factory": plugins.state_store_factory(_name), "__module__": __name__},
        )
