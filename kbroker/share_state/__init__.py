"""The share coordinator (KIP-932), pure: the state of share-partitions as snapshots and updates.

coordinator.py       the verbs: initialize, read, write, delete, read_summary. Begin here.
states.py            states in memory, and their encoding; outcome.py is a decision
loading.py           a state from its snapshot and updates
parked.py            parked records as keys of the state store
housekeeping.py      which states get a cold snapshot
control_chains.py    the same state as control records in the log; control_walk.py reads them
"""
