"""Spark jobs on kbroker's data sources: archive, queue-health, dead-letter-report and verify. Each
is idempotent and incremental."""
