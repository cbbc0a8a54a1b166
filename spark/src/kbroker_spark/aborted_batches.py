"""Which batches belong to aborted transactions. Pure, apart from numpy.

A plan finds the aborted transactions of a range, and its tasks leave out their batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbroker.formats.batches import NO_PRODUCER_ID, TRANSACTIONAL
from kbroker_spark.offsets import Aborted


class UnknownTransaction(ValueError):
    """A log has a transaction, at `offset`, although its state says that there are none."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class AbortedBatches:
    """Finds the batches of aborted transactions among the headers of many batches. `aborted`: None
    if there are no transactions at all."""

    def __init__(self, aborted: Iterable[Aborted] | None) -> None:
        self._may_have = aborted is not None
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for producer_id, first, last in aborted or ():
            found[producer_id].append((first, last))
        self._bounds = {
            producer_id: np.ascontiguousarray(np.array(sorted(each), np.int64).T)
            for producer_id, each in found.items()
        }
        """By producer id: the first offsets, and the markers, of its transactions in order. They
        do not overlap."""

    def among(self, headers: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each batch is one. The CRCs of the batches were verified. Raises
        UnknownTransaction."""
        is_aborted = np.zeros(len(headers), np.bool_)
        candidates = np.flatnonzero(headers["attributes"] & TRANSACTIONAL)
        if not len(candidates):
            return is_aborted
        producers = headers["producer_id"][candidates].astype(np.int64)
        if not self._may_have and (producers > NO_PRODUCER_ID).any():
            raise UnknownTransaction(int(headers["base_offset"][candidates[producers > NO_PRODUCER_ID][0]]))
        candidates = candidates[order := np.argsort(producers, kind="stable")]
        numbers, begins = np.unique(producers[order], return_index=True)
        for producer_id, mine in zip(numbers.tolist(), np.split(candidates, begins[1:]), strict=True):
            if producer_id in self._bounds:
                firsts, lasts = self._bounds[producer_id]
                is_aborted[mine] = _within(firsts, lasts, headers["base_offset"][mine])
        return is_aborted


def _within(
    firsts: NDArray[np.int64], lasts: NDArray[np.int64], offsets: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether each offset is in one of the intervals [first, last)."""
    following = np.searchsorted(lasts, offsets, "right")
    found: NDArray[np.bool_] = np.append(firsts, np.iinfo(np.int64).max)[following] <= offsets
    return found
