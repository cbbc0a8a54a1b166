"""The persister `control-records` of kbroker: share state as control records of the topic partition
itself. `PERSISTER` is what the entry point names.

    persister.py    the interfaces of kbroker/share/persister.py; see its docstring first
    logs.py         all topic partitions with control records, and which record has which state
    partition.py    one topic partition: its chains, its hint, and what a start has to search
    scan.py         reads control records from a log
    offsets.py      the offsets of control records, which are never lag
    rows.py         its WaitingRows: those of the state store, beside control records
    own_records.py  its OwnRecords: counting control records, saving them from retention
    saving.py       one decision on its way to the disk
    parking.py      parked records beside control records, in two stores without a common commit

docs/decisions/0025-control-records-plugin.md lists what this package may import from kbroker. The
format of the records is kbroker's (kbroker/formats/control_records.py), so that offline readers do
not need this package.
"""

from __future__ import annotations

from kbroker_control_records.persister import PERSISTER

__all__ = ["PERSISTER"]
