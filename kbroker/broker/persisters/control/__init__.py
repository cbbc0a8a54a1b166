"""Share state as control records of the topic partition itself
(kbroker.persister=control-records)."""
