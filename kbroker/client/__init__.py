"""A small blocking client for administration, tests and scripts. Producing and consuming are left
to the real Kafka clients."""
