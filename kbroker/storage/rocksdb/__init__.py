"""The RocksDB engine."""
