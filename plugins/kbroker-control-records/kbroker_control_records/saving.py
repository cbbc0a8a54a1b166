"""One decision of the share coordinator on its way to the disk.

A decision may change several logs. The commit of each log notifies this object, and the last one
confirms the decision or reverts it. The count of records that were given up follows, and step 3 of
parking.py if the write parks records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from kbroker.broker.commits.waiting import Pending
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.state import GivenUpKey
from kbroker.share.persister import Result, TopicPartition
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.outcome import ShareStateOutcome
from kbroker_control_records.parking import ControlParking, Step

R = TypeVar("R", bound=Result)


class SavedOutcome(Generic[R]):
    """`results` are final once `pending` is zero. `steps`: the remaining work on parked records
    after the decision is saved."""

    def __init__(
        self,
        coordinator: ShareStateCoordinator,
        parking: ControlParking,
        outcome: ShareStateOutcome[R],
        steps: Mapping[TopicPartition, Step],
    ) -> None:
        self.results = list(outcome.results)
        self.pending = Pending(int(outcome.must_wait))
        self.logs_left = 0
        self._coordinator = coordinator
        self._parking = parking
        self._outcome = outcome
        self._steps = steps
        self._failure: Exception | None = None

    def refuse(self, error: KafkaError) -> None:
        """Nothing was appended."""
        self.results[:] = self._coordinator.states.failed(self._outcome, error.code, error.message)
        self.pending.parts = 0

    def log_done(self, error: Exception | None) -> None:
        self.logs_left -= 1
        self._failure = self._failure or error
        if self.logs_left:
            return
        if self._failure is None:
            self._coordinator.states.confirm(self._outcome)
            # One step, although several requests may be for one share-partition.
            saved = dict.fromkeys(row.partition for row in self.results if row.code is ErrorCode.none)
            steps = [self._steps[partition] for partition in saved if partition in self._steps]
            changes = self._outcome.changes
            counts = [change for change in changes if change[0].startswith(GivenUpKey.namespace)]
            if self._parking.submit_removals(steps, counts, self._removed):
                return
        else:
            self.results[:] = self._coordinator.states.failed(self._outcome, message=str(self._failure))
        self.pending.part_done()

    def _removed(self, error: Exception | None) -> None:
        if error is not None:  # The decision itself is saved.
            refusal = KafkaError(ErrorCode.coordinator_not_available, str(error))
            self.results[:] = [
                _failed(row, refusal) if row.partition in self._steps else row for row in self.results
            ]
        self.pending.part_done()


def _failed(row: R, refusal: KafkaError) -> R:
    return replace(row, code=refusal.code, message=refusal.message) if row.code is ErrorCode.none else row
