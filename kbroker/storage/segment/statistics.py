"""The numbers of a segment store that become metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentStoreStatistics:
    logs: int
    segments: int
    unsealed_segments: int
    """Full, but not sealed yet."""
    unrecorded_bytes: int
    """Synced, but in no checkpoint: a start after a crash rereads them."""
    bytes: int
    open_maps: int
    open_files: int
    dirty_files: int
    writes: int
    written_bytes: int
    refused_writes: int
    syncs: int
    failed: bool
