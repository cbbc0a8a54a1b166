"""Jobs on the data sources of kbroker, each idempotent and incremental: archive, queue-health,
dead-letter-report, verify."""
