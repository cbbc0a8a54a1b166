"""The old engine behind the adapter of tests/share/engine.py. It never changes.

In that commit, everything that the worlds ask of a share-partition is a method or a property of
SharePartition, or of its Parking.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.share.engine import FEW, MANY, Engine
from tests.share.parked_store import Store
from tests.share.shadow.old_tree import PACKAGE


class OldEngine(Engine):
    def __init__(
        self,
        settings: Any,
        store: Store,
        *,
        leader_epoch: int = 0,
        now_ms: float = 0.0,
        life_ahead_ms: float = 0.0,
        parks: bool = True,
    ) -> None:
        share = f"{PACKAGE}.share"
        self.share_partition = import_module(f"{share}.share_partition").SharePartition.load(
            settings,
            start_offset=store.start,
            state_batches=store.batches,
            state_epoch=0,
            leader_epoch=leader_epoch,
        )
        self.parking: Any = None
        if parks:
            self.parking = import_module(f"{share}.parking").Parking(
                store.waiting, leader_epoch=leader_epoch, life_ahead_ms=life_ahead_ms, now_ms=now_ms
            )
            nowhere = import_module(f"{share}.parked_memory").NOWHERE
            self.parking.kept_from = min(filter(store.keeps, store.offsets), default=nowhere)
            for lane, order in self.parking._orders.items():
                if lane.name != "ARCHIVING":
                    order.few, order.many = FEW, MANY
            self.share_partition.parking = self.parking

    def __getattr__(self, name: str) -> Any:
        return getattr(self.share_partition, name)

    def use(self, settings: Any) -> None:
        self.share_partition.settings = settings

    def let_letters_wait(self, value: bool) -> None:
        self.share_partition.letters_wait = value

    def keep_order(self) -> None:
        self.share_partition.keep_order()
