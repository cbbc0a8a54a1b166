"""Every built-in state engine keeps the promises of the StateStore SPI."""

from __future__ import annotations

from kbroker.storage import memory_store
from kbroker.testing.state_store_contract import StateStoreContract


class TestMemory(StateStoreContract):
    factory = memory_store.STATE_STORE
