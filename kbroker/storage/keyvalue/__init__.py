"""What engines over a key-value store have in common: logs in chunks, ranges of keys."""
