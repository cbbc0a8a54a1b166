"""Kafka's tools against Apache Kafka and kbroker: the same commands, and their outputs compared."""
