"""One topic partition's share state in control records: where each group's newest records are, and
which records are appended next. Pure.

    log     ...  C g1  ...  D g1  ...  C g2  ...  D g1  ...  D g2  ...
                  ^----------'^-------------------'            C: SHARE_CHECKPOINT
    chain of g1  (checkpoint)                   (newest)       D: SHARE_DELTA

The share coordinator (share_state/coordinator.py) decides as it does over a StateStore. Here its
changes become records, and a scan of a share-partition's keys becomes a walk along its chain.
Number 0 is the checkpoint, and number n the n-th delta after it.

Records are appended in the order of the decisions, and those of one log fail together. The caller
calls `records`, submits them, and then calls `confirm` or `fail`. This module must not know how a
log is read or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kbroker.formats.control_records import NO_OFFSET, ControlType, ShareControl
from kbroker.formats.state import ControlChain, ControlHint

ShareChange: TypeAlias = tuple[str, int, bytes | None]
"""(group id, number, value): the share coordinator's change to one key of this topic partition."""
Ends: TypeAlias = Mapping[str, ControlChain | None]
"""Where chains end after a batch; None: the group's state is deleted."""


class ToAppend(NamedTuple):
    controls: Sequence[ShareControl]
    ends: Ends


class ControlChains:
    """`groups` are the saved chains."""

    def __init__(self, groups: Mapping[str, ControlChain] | None = None) -> None:
        self.groups: dict[str, ControlChain] = dict(groups or {})
        self._decided: dict[str, ControlChain | None] = {}
        self._unsaved = 0

    def chain(self, group_id: str) -> ControlChain | None:
        """The chain with unsaved records."""
        return self._decided[group_id] if group_id in self._decided else self.groups.get(group_id)

    def known(self) -> set[str]:
        """Groups that have state here, saved or not."""
        return {group_id for group_id in {*self.groups, *self._decided} if self.chain(group_id) is not None}

    # ---- reading the log, once -------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: ControlHint, log_start: int) -> ControlChains:
        """`replay` of an open hint's records follows. A chain that begins below `log_start` has
        ended: a group with state has a newer checkpoint, and the record of a deletion may be gone
        as well. Records below it do not count, even if their segment can still be read."""
        return cls(
            {group_id: chain for group_id, chain in hint.groups.items() if chain.checkpoint >= log_start}
        )

    def replay(self, offset: int, control: ShareControl) -> None:
        """Apply a record of the log; the caller passes them in offset order. Deltas without a
        checkpoint belong to a deleted state."""
        if control.is_deletion:
            self.groups.pop(control.group_id, None)
        elif control.type is ControlType.SHARE_CHECKPOINT:
            self.groups[control.group_id] = ControlChain(offset, offset)
        elif control.group_id in self.groups:
            self.groups[control.group_id] = self.groups[control.group_id]._replace(newest=offset)

    # ---- appending -------------------------------------------------------------------------------

    def records(self, changes: Iterable[ShareChange], base_offset: int) -> ToAppend:
        """The records for these changes, at `base_offset` and the offsets behind it. May be empty:
        a checkpoint removes the deltas before it without a record."""
        controls: list[ShareControl] = []
        ends: dict[str, ControlChain | None] = {}
        for group_id, number, value in changes:
            offset = base_offset + len(controls)
            chain = self.chain(group_id)
            if number == 0:
                controls.append(ShareControl(ControlType.SHARE_CHECKPOINT, group_id, value or b""))
                ends[group_id] = None if value is None else ControlChain(offset, offset)
            elif value is None:
                continue
            else:
                assert chain is not None, f"a delta of {group_id} without a checkpoint"
                controls.append(ShareControl(ControlType.SHARE_DELTA, group_id, value, chain.newest))
                ends[group_id] = ControlChain(chain.checkpoint, offset)
            self._decided[group_id] = ends[group_id]
        self._unsaved += bool(controls)
        return ToAppend(controls, ends)

    def confirm(self, ends: Ends) -> None:
        """The records of one ToAppend are saved."""
        self._unsaved -= 1
        for group_id, chain in ends.items():
            if chain is None:
                self.groups.pop(group_id, None)
            else:
                self.groups[group_id] = chain
        if not self._unsaved:
            self._decided.clear()

    def fail(self) -> None:
        """All records on their way to this log's end have failed."""
        self._unsaved = 0
        self._decided.clear()

    # ---- hints and retention ---------------------------------------------------------------------

    def hint(self, offset: int, *, is_open: bool) -> ControlHint:
        """As of `offset`, where the log ends for readers."""
        return ControlHint(offset, is_open, self.groups)

    def below(self, offset: int) -> list[str]:
        """Groups that would lose their checkpoint if the log began at `offset`. The saved
        checkpoint counts as well, while a newer one may still fail."""
        return [
            group_id
            for group_id in sorted(self.known())
            if any(
                chain is not None and chain.checkpoint < offset
                for chain in (self.chain(group_id), self.groups.get(group_id))
            )
        ]


class ChainWalk:
    """From a group's newest record back to its checkpoint: the caller reads the control record at
    `offset` and passes it to `take`, until `offset` is None. `take` raises ValueError where the
    chain is broken."""

    def __init__(self, group_id: str, chain: ControlChain) -> None:
        self._group_id = group_id
        self.checkpoint = chain.checkpoint
        self._found: list[bytes] = []
        self.offset: int | None = chain.newest

    def take(self, control: ShareControl | None) -> None:
        offset = self.offset
        assert offset is not None
        if control is None or control.group_id != self._group_id or control.is_deletion:
            raise ValueError(f"there is no control record of group {self._group_id} at offset {offset}")
        is_checkpoint = control.type is ControlType.SHARE_CHECKPOINT
        if is_checkpoint is not (offset == self.checkpoint) or not (
            is_checkpoint or NO_OFFSET < control.back_offset < offset
        ):
            raise ValueError(
                f"the control record of group {self._group_id} at offset {offset} does not lead to its "
                "checkpoint"
            )
        self._found.append(control.state)
        self.offset = None if is_checkpoint else control.back_offset

    def entries(self) -> list[tuple[int, bytes]]:
        """(number, value), the checkpoint first."""
        assert self.offset is None, "the checkpoint was reached"
        return list(enumerate(reversed(self._found)))
